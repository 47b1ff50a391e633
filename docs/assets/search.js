// What the search of the theme lacks. docs/build_site.py lets this run before the script of the theme; a site built
// without it searches as the theme does.
(function () {
  "use strict";

  // The index weighs more than any page. It is fetched, as is the worker that reads it, once somebody is about to
  // search, not with every page.
  var isWanted = /[?&][qh]=/.test(location.search); // somebody shared a search, or came from one: its words are marked
  var held = []; // requests of the theme, with what they were to send
  var open = XMLHttpRequest.prototype.open;
  var send = XMLHttpRequest.prototype.send;
  XMLHttpRequest.prototype.open = function (method, address) {
    this.mvIsIndex = /\/search\/search_index\.json$/.test(address);
    return open.apply(this, arguments);
  };
  XMLHttpRequest.prototype.send = function (body) {
    if (this.mvIsIndex && !isWanted) held.push([this, body]);
    else send.call(this, body);
  };
  function want(event) {
    var target = event.target;
    if (isWanted || !(target instanceof Element) || !target.closest(".md-search, [for=__search]")) return;
    isWanted = true;
    held.forEach(function (request) { send.call(request[0], request[1]); });
  }
  ["focusin", "pointerover", "click"].forEach(function (name) { document.addEventListener(name, want); });

  // The search looks for what begins like each word of a query, so "is a" would find all that begins with an a, and
  // "preempted" would not find a preemption. Of a question in plain words it is given those that say something,
  // without their endings. What stands between quotation marks is left as it is.
  var FILLING = ("a about an and any are as at be been but by can could did do does doing explain explained for from get " +
    "gets getting had has have having how i if in into is isn it its just let make makes many me mean meaning means much my no not of off on or our " +
    "please s should so some t tell than that the their them then there these they this those to too up us use uses used using " +
    "vs want was way we were what whats when where which who whose why will with work works would you your").split(" ");
  var FILLING_ZH = /为什么|什么时候|什么|是不是|能不能|可以|怎么样|怎么办|怎么|怎样|如何|哪里|哪些|哪个|多少|请问|一个|[的了吗呢吧是有在会被和与把]/g;
  var ENDING = /(?:ations?|ions?|ings?|ers?|ed|es|s)$/;
  function root(word) {
    if (!/^[a-z]{5,}$/.test(word) || /(?:ss|us|is)$/.test(word)) return word;
    var cut = word.replace(ENDING, "").replace(/([bdgmnprt])\1$/, "$1");
    return cut.length < 4 ? word : cut;
  }
  function sayingWords(query) {
    if (query.indexOf('"') >= 0) return query;
    var words = query.toLowerCase().replace(/[?!;]+/g, " ").replace(/-?\b[a-z]\b/g, " ")
      .replace(FILLING_ZH, " ").split(/\s+/).filter(Boolean);
    var saying = words.filter(function (word) { return FILLING.indexOf(word.replace(/'.*/, "")) < 0; });
    return saying.length ? saying.map(root).join(" ") : query;
  }
  var QUERY = 2; // the theme's number for such a message to its worker

  // The worker, which is told the index first of all, is fetched when there is something to tell it.
  var TheirWorker = window.Worker;
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.address = address;
    }
    postMessage(message) {
      if (!this.worker) {
        this.worker = new TheirWorker(this.address);
        this.worker.onmessage = (event) => this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      }
      var isQuery = message.type === QUERY && typeof message.data === "string";
      this.worker.postMessage(isQuery ? { type: QUERY, data: sayingWords(message.data) } : message);
    }
  };
})();
