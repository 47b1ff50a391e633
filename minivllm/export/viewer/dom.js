"use strict";
// Owns how elements are made. Text is always set as text, never as HTML: whatever a prompt says, it is only shown.

/** An element with attributes and children; a child is an element, a text, a list of them, or null. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "onclick") element.addEventListener("click", value);
    else if (name === "vars") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child !== null && child !== undefined && child !== false) {
      element.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
  }
}

function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

const byId = (id) => document.getElementById(id);

/** A table whose cells know the names of their columns, so that a narrow screen can show each row as a card. */
function table(caption, columns, rows) {
  const head = h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)));
  const body = rows.map(({ cells, ...attributes }) =>
    h("tr", attributes, cells.map((cell, place) => h(place === 0 ? "th" : "td",
      { scope: place === 0 ? "row" : null, "data-column": columns[place] }, cell))));
  return h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, head), h("tbody", {}, body));
}
