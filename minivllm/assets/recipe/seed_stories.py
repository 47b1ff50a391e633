"""Owns the hand-written examples that show the teacher model which stories we want.

Each entry is (summary, story). The generator puts a few of them in front of every new opening, so the teacher
continues in the same plain words, short sentences and complete plots. All were written for this project.
"""

HELD_OUT_SEEDS = 10  # the last ones: neither the teacher nor the model ever sees them

SEED_STORIES: list[tuple[str, str]] = [
    (
        "Lily loses her red kite in a tree. A bird helps her.",
        "One windy day, a girl named Lily went to the park with her red kite. The kite went up, up, up into the sky. "
        "Lily ran and laughed. Then the wind blew hard, and the kite got stuck in a tall tree.\n"
        "Lily was sad. She jumped and jumped, but she could not reach it. A little bird sat on a branch and saw her.\n"
        '"Why are you sad?" asked the bird.\n'
        '"My kite is stuck," said Lily. "Can you help me?"\n'
        "The bird pulled the string with its beak. The kite fell down into Lily's arms. "
        '"Thank you, little bird!" said Lily. She gave the bird some of her bread. '
        "From that day on, Lily and the bird played together in the park every day.",
    ),
    (
        "Ben does not want to share his blocks. He learns that sharing is fun.",
        "Ben had a big box of blocks. He liked to make tall towers. One day, his friend Mia came to his house.\n"
        '"Can I play with the blocks too?" asked Mia.\n'
        '"No!" said Ben. "They are mine." Mia sat on the floor and looked sad.\n'
        "Ben tried to make a very tall tower, but it fell down. He tried again, and it fell down again. "
        "Ben was angry and wanted to cry.\n"
        '"I can hold the bottom," said Mia in a soft voice.\n'
        "Ben thought about it. Then he gave Mia some blocks. Mia held the bottom and Ben put blocks on the top. "
        "The tower was so tall that it was as big as they were! They both laughed and clapped. "
        "Ben learned that playing is more fun when you share.",
    ),
    (
        "A small frog is afraid to jump into the pond. His mother helps him be brave.",
        "Once upon a time, there was a small green frog named Pip. Pip lived near a pond. "
        "All the other frogs jumped into the water and swam. But Pip was afraid.\n"
        '"The water is too deep," he said. He sat on a rock and watched the others play.\n'
        'His mother came and sat next to him. "I was afraid too when I was little," she said. '
        '"We can jump together."\n'
        "She held his hand. They counted to three. One, two, three! Splash! "
        "The water was cool and nice. Pip kicked his legs and started to swim.\n"
        '"I did it!" he shouted. His mother smiled. Pip was not afraid anymore. He jumped again and again until the '
        "sun went down.",
    ),
    (
        "Sara and her grandma bake a cake. The dog eats it, so they bake a new one.",
        "Sara loved to visit her grandma. One morning, they made a cake together. Sara mixed the eggs and the milk. "
        "Grandma put the cake in the hot oven. Soon the kitchen smelled very good.\n"
        "They put the cake on the table and went to the garden to pick flowers. When they came back, the cake was gone! "
        "There were only crumbs on the plate.\n"
        '"Who ate our cake?" asked Sara. Then she saw the dog, Max. He had cream on his nose. He looked at the floor.\n'
        'Grandma laughed. "Max, you silly dog! That cake was for all of us."\n'
        "Sara laughed too. They made a new cake, and this time they put it on a high shelf. "
        "After dinner they all ate cake, and Max got a dog cookie.",
    ),
    (
        "Tom finds a lost puppy in the rain and takes it home to its owner.",
        "It was a rainy day. Tom was walking home from school with his blue umbrella. He heard a small sound under a "
        "bush. He looked and saw a puppy. It was wet and cold.\n"
        '"Oh no! Are you lost?" said Tom. The puppy wagged its tail. Tom put the puppy under his coat and took it home.\n'
        'Dad gave Tom a towel, and they dried the puppy. "It has a tag," said Dad. "It says Spot. '
        'It lives on our street."\n'
        "Tom did not want to give the puppy back. But he knew that someone missed it. They walked to a yellow house and "
        "knocked on the door. An old man opened it.\n"
        '"Spot! You are home!" said the man. He was so happy. "Thank you, Tom. You can come and play with Spot every day."\n'
        "Tom smiled. Now he had two new friends.",
    ),
    (
        "A proud rabbit laughs at a slow turtle. The turtle helps him cross the river.",
        "In a green forest, there lived a rabbit named Jack. Jack was very fast. He liked to laugh at the turtle because "
        "she was so slow.\n"
        '"You will never get there!" he said, and he ran away.\n'
        "One day, there was a lot of rain. The river became wide and deep. Jack wanted to go home, but he could not swim. "
        "He sat by the river and began to cry.\n"
        "The turtle came along, very slowly. "
        '"Sit on my back," she said. "I am slow, but I can swim."\n'
        "Jack sat on her back. The turtle swam and swam until they were on the other side.\n"
        '"Thank you," said Jack. "I am sorry that I laughed at you."\n'
        '"That is okay," said the turtle. After that, Jack always walked slowly when he was with his friend.',
    ),
    (
        "Anna cannot sleep because of a noise. It is only a kitten at the window.",
        "It was night. Anna was in her bed with her teddy bear. The room was dark. Then she heard a noise. "
        "Scratch, scratch, scratch.\n"
        "Anna pulled the blanket over her head. Was it a monster? She was very scared. "
        '"Mom!" she called.\n'
        "Mom came in and turned on the light. "
        '"What is wrong, my dear?" she asked.\n'
        '"There is a monster at the window," said Anna.\n'
        "Mom held her hand, and they went to the window together. They looked out. A tiny gray kitten looked back at "
        "them. It wanted to come in.\n"
        "Anna laughed. "
        '"It is not a monster. It is a baby cat!" They gave the kitten some milk and a warm box. '
        "Then Anna went back to bed and slept all night.",
    ),
    (
        "Leo breaks a vase and lies about it. He tells the truth and feels better.",
        "Leo was playing with his ball in the house. Mom had told him not to do that. He kicked the ball very hard. "
        "Crash! The ball hit the vase, and the vase broke.\n"
        'Mom came into the room. "What happened?" she asked.\n'
        'Leo was scared. "The cat did it," he said.\n'
        "Mom looked at the cat. The cat was asleep in the sun. Mom did not say anything. She began to clean the floor.\n"
        "Leo felt bad. His tummy hurt. He went to Mom and said, "
        '"It was me. I kicked the ball. I am sorry."\n'
        'Mom gave him a hug. "Thank you for telling the truth," she said. "The vase can be fixed. '
        'It is important to be honest." Leo helped Mom clean, and then he played with his ball outside.',
    ),
    (
        "A little cloud has no friends. She gives rain to the flowers and makes friends.",
        "High up in the sky, there was a little gray cloud. The white clouds were big and pretty. They did not play with "
        "her. The little cloud was lonely.\n"
        "One day, she looked down and saw a garden. The flowers were dry and their heads were low. "
        '"We are so thirsty," they said. "We need water."\n'
        '"I have water!" said the little cloud. She flew over the garden, and soft rain fell on the flowers. '
        "Drip, drop, drip, drop. The flowers drank and lifted their heads.\n"
        '"Thank you, little cloud," said the flowers. "You are our best friend."\n'
        "The little cloud was very happy. She came back every week to give water to her friends.",
    ),
    (
        "Max the bear wants honey, but the bees say no. He asks nicely and waits.",
        "Max was a big brown bear. He loved honey more than anything. One morning, he found a tree with a beehive in it. "
        '"Yum!" said Max. He put his paw inside.\n'
        "Buzz! Buzz! The bees were angry. They flew around his head. Max ran to the lake and jumped in.\n"
        "Max was wet and sad. An old owl looked at him from a branch. "
        '"Did you ask the bees first?" said the owl.\n'
        "Max shook his head. He went back to the tree. "
        '"Dear bees," he said, "may I please have a little honey?"\n'
        "The bees talked to each other. "
        '"You asked nicely," said the queen bee. "Bring us some flowers, and we will give you some honey."\n'
        "Max picked many flowers for the bees, and they gave him a big pot of honey. It was very sweet.",
    ),
    (
        "Two sisters want the same doll. They take turns.",
        "Emma and Zoe were sisters. They had many toys, but they both loved one doll. The doll had a blue dress and long "
        "hair.\n"
        '"I want the doll!" said Emma. She pulled the arm.\n'
        '"No, I want the doll!" said Zoe. She pulled the leg. They pulled and pulled. Rip! The dress tore.\n'
        "The sisters looked at the doll. They both started to cry. Dad came to see what was wrong.\n"
        '"If you fight, nobody can play," said Dad. "What can you do now?"\n'
        'Emma dried her eyes. "We can fix the dress," she said. '
        '"And then we can take turns," said Zoe.\n'
        "Dad helped them fix the dress. Emma played in the morning, and Zoe played after lunch. "
        "In the evening they made a little bed for the doll, and they did it together.",
    ),
    (
        "Sam plants a seed and waits for it to grow. He learns to be patient.",
        "One spring day, Sam got a small seed from his grandpa. "
        '"Put it in the ground, give it water, and wait," said Grandpa.\n'
        "Sam put the seed in a pot. He gave it water. Then he sat down and looked at it. Nothing happened.\n"
        '"Why does it not grow?" asked Sam.\n'
        '"You have to be patient," said Grandpa.\n'
        "Sam waited one day. He waited two days. Every day he gave the seed a little water. After a week, he saw a tiny "
        "green leaf!\n"
        '"Grandpa, look! It is growing!" Sam shouted.\n'
        "The plant grew and grew. In summer, it had a big yellow flower. It was a sunflower, and it was taller than Sam. "
        "Sam was proud because he had waited and cared for it.",
    ),
    (
        "A mouse finds a big piece of cheese and shares it with a hungry friend.",
        "There was once a mouse named Tim. He lived in a hole in the wall of a kitchen. One night, he found a big piece "
        "of cheese under the table.\n"
        '"What a lucky day!" said Tim. He pushed the cheese to his home. It was very heavy.\n'
        "On the way, he met another mouse. She was thin, and she looked tired. "
        '"I have not eaten today," she said.\n'
        "Tim looked at his cheese. He wanted to eat all of it. But then he looked at the hungry mouse and broke the "
        "cheese in two.\n"
        '"Here," he said. "This is for you."\n'
        '"You are so kind," she said. She helped him push the cheese home, and they ate together. '
        "The cheese tasted even better with a friend.",
    ),
    (
        "Mia wants to ride a bike. She falls, tries again, and can do it.",
        "Mia got a new bike for her birthday. It was yellow and had a little bell. She wanted to ride it like her big "
        "brother.\n"
        "She sat on the bike and pushed. The bike shook, and she fell on the grass. "
        '"Ouch!" said Mia. "It is too hard. I will never learn."\n'
        '"Everybody falls at first," said her brother. "I fell many times. Try again, and I will hold you."\n'
        "Mia tried again. Her brother held the bike and ran next to her. She went a little bit. Then she went a bit "
        "more. Then her brother let go, and Mia did not even see it!\n"
        '"You are riding!" he shouted.\n'
        "Mia rang her bell. Ding, ding! She was riding all by herself. She was so happy that she did not want to stop.",
    ),
    (
        "A fox tricks a duck and takes her bread. The fox learns to be kind.",
        "A duck had a nice piece of bread. She sat by the lake and wanted to eat it. A fox saw the bread and had an idea.\n"
        '"Look, a big fish!" said the fox. The duck turned around to look. Snap! The fox took the bread and ran away.\n'
        '"That was not nice," said the duck. She was hungry and sad.\n'
        "The fox ran fast and did not look where he was going. He fell into a deep hole. "
        '"Help!" he called. "I cannot get out!"\n'
        "The duck heard him. She was still angry, but she did not want the fox to be hurt. She pushed a long branch into "
        "the hole, and the fox climbed out.\n"
        "The fox felt ashamed. "
        '"I took your bread, and you helped me," he said. "I am sorry." He gave the bread back and never tricked the '
        "duck again.",
    ),
    (
        "Jack and Dad go to the beach and build a sand castle. A wave breaks it.",
        "It was a hot summer day. Jack and his dad went to the beach. They had a bucket and a small shovel.\n"
        '"Let us make a castle," said Jack. They put wet sand in the bucket and turned it over. They made four towers '
        "and a wall. Jack put a white shell on the top.\n"
        '"It is the best castle in the world," said Jack.\n'
        "Then a big wave came. Whoosh! The water went over the castle, and the castle was gone. Jack's eyes were full of "
        "tears.\n"
        'Dad sat down next to him. "The sea wanted to play too," he said. "Shall we make a new one?"\n'
        "Jack looked at the sea. He saw his white shell in the sand and picked it up. "
        '"Yes," he said. "But not so close to the water!" They made a new castle, and it was even bigger.',
    ),
    (
        "A little train is too small to carry the toys, but he does not give up.",
        "Once there was a little blue train. The other trains were big and strong. They carried wood and stones. The "
        "little train only carried letters.\n"
        "One day, it snowed a lot. The big trains were stuck in the snow. The children in the town were waiting for "
        "their toys.\n"
        '"Who can bring the toys?" asked the station man.\n'
        '"I can try," said the little train. The big trains laughed, but the little train did not listen. '
        "They put the toys on his back, and he started to go. Chug, chug, chug. The hill was high, and the snow was deep.\n"
        '"I will not stop," he said. He went up and up, and then he was at the top!\n'
        "When he came to the town, all the children cheered. The little train was small, but he was very brave.",
    ),
    (
        "Nora finds a shiny coin and gives it back to the old woman who lost it.",
        "Nora was walking to the market with her mom. She saw something shiny on the ground. It was a gold coin!\n"
        '"Look, Mom! I can buy candy," said Nora.\n'
        '"Maybe someone lost it," said Mom. "How would you feel if you lost your coin?"\n'
        "Nora thought about it. She would feel very sad. Then she saw an old woman. The woman was looking at the ground "
        "and under the benches.\n"
        '"Did you lose something?" asked Nora.\n'
        '"Yes," said the woman. "I lost my coin. I need it to buy bread."\n'
        "Nora opened her hand and gave her the coin. The old woman smiled and hugged her. "
        '"You are a good girl," she said. She bought bread and gave Nora a sweet roll. Nora felt warm and happy inside.',
    ),
    (
        "A bird with a hurt wing stays with Lucy until it can fly again.",
        "Lucy was in the garden when she saw a little bird on the ground. It tried to fly, but it could not. One wing was "
        "hurt.\n"
        '"Poor bird," said Lucy. She picked it up with soft hands and took it into the house. '
        "Mom found a box, and Lucy put grass in it to make a bed.\n"
        "Every day, Lucy gave the bird water and seeds. She talked to it and sang songs. The bird grew stronger.\n"
        'One morning, the bird jumped out of the box and moved its wings. "It wants to go home," said Mom.\n'
        "Lucy was a little sad, but she opened the window. The bird flew out and sat on a tree. It sang a pretty song for "
        'her. "Goodbye, little bird," said Lucy. The bird came back every morning to sing.',
    ),
    (
        "Bob the pig is dirty and does not want a bath. The bath is fun.",
        "Bob was a fat pink pig. He loved to play in the mud. One day, he was so dirty that nobody could see that he was "
        "pink.\n"
        '"Bob, you need a bath," said the farmer.\n'
        '"No bath for me!" said Bob. He ran behind the barn. But the mud got dry and hard. Bob could not move his legs '
        "very well. He was itchy too.\n"
        "The hen looked at him. "
        '"Are you a stone?" she asked.\n'
        '"No, I am Bob!" said Bob. All the animals laughed.\n'
        "So Bob went to the tub. The water was warm, and there were bubbles. Pop, pop, pop! Bob played with the bubbles "
        "and splashed the farmer. "
        '"A bath is almost as fun as mud!" he said. Then he was clean and pink, and he slept in the soft hay.',
    ),
    (
        "Lena is shy at her new school. A boy with a toy car becomes her friend.",
        "It was the first day of school. Lena stood at the door and held her mom's hand. There were many children in the "
        "room. She did not know anyone.\n"
        '"I want to go home," said Lena.\n'
        '"Just try it," said Mom. She gave Lena a kiss.\n'
        "Lena sat down in a corner. A boy came and sat next to her. He had a green toy car. "
        '"My name is Amir," he said. "Do you like cars?"\n'
        "Lena nodded. Amir pushed the car to her. She pushed it back. They made a road with books and a bridge with "
        "pencils. Soon they were both laughing.\n"
        "When Mom came to pick her up, Lena did not want to go. "
        '"Can I come back tomorrow?" she asked. Mom laughed and said yes.',
    ),
    (
        "The moon is lonely at night. An owl tells her stories.",
        "Every night, the moon came up over the hills. Everyone was asleep. The children were asleep, the dogs were "
        "asleep, and even the wind was asleep. The moon had nobody to talk to.\n"
        '"I wish I had a friend," said the moon.\n'
        '"Who, who, who are you talking to?" asked a voice. It was an owl in an old tree.\n'
        '"You are awake!" said the moon.\n'
        '"I am always awake at night," said the owl. "I sleep in the day."\n'
        "The moon was so glad that she shone very bright. The owl told her a story about a mouse and a shoe. The moon "
        "told the owl about the stars. They talked until the sun came up.\n"
        "After that, the moon was never lonely. And when you see a bright moon, you know that the owl is telling a story.",
    ),
    (
        "Oscar does not listen to his mom and touches a hot pot. He learns to listen.",
        "Mom was making soup in the kitchen. It smelled so good. Oscar was hungry and wanted to see what was in the pot.\n"
        '"Do not touch the pot," said Mom. "It is very hot."\n'
        "Then the phone rang, and Mom went out. Oscar looked at the pot. He could not wait. He put his finger on it. "
        '"Ouch!" he cried. His finger was red, and it hurt a lot.\n'
        "Mom ran back. She put his finger under cold water. "
        '"I am sorry, Mom," said Oscar. "I should have listened to you."\n'
        '"I know it is hard to wait," said Mom. "But I want you to be safe."\n'
        "Soon his finger felt better. Mom gave him a bowl of soup, and they both blew on it. Oscar waited until it was "
        "not too hot. The soup was worth the wait.",
    ),
    (
        "Rosie the cow wants to dance. The animals laugh, but then they dance too.",
        "On a farm, there was a cow named Rosie. She did not want to eat grass all day. She wanted to dance.\n"
        '"Cows do not dance," said the horse.\n'
        '"You are too big," said the hen.\n'
        "But Rosie heard the rain on the roof. Tap, tap, tap. She moved one foot. She moved the other foot. She turned "
        "around and around. It felt so good!\n"
        "The little lambs came to watch. "
        '"Can you teach us?" they asked. Rosie showed them how. Soon the lambs were dancing. Then the hen moved her '
        "wings, and the horse moved his feet. All the animals danced in the barn until they were tired.\n"
        '"I was wrong," said the horse. "Cows can dance very well." Rosie smiled. She was the happiest cow in the world.',
    ),
    (
        "Finn and his sister look for their lost cat. They find her with kittens.",
        "Finn and his sister Ella had a cat named Luna. One morning, Luna did not come to eat. They looked under the bed. "
        "They looked in the garden. Luna was not there.\n"
        '"Maybe she ran away," said Ella. She started to cry.\n'
        '"We will find her," said Finn. He took a flashlight, and they went to the old shed. It was dark inside. '
        "They heard a soft sound. Meow, meow.\n"
        "Finn turned on the light. There was Luna, in a box of old clothes. Next to her were four tiny kittens! They were "
        "black and white and very small.\n"
        '"Luna is a mom!" said Ella. They brought Luna milk and a soft blanket. '
        "They sat very still and watched the kittens sleep. It was the best surprise ever.",
    ),
    (
        "A boy makes a paper boat and it goes down the river to a girl.",
        "Nico made a boat out of paper. He wrote his name on it and drew a smile. Then he put it in the river. The boat "
        "floated away, past the rocks and under the bridge.\n"
        '"Goodbye, boat," said Nico. "I hope you see the sea."\n'
        "Far down the river, a girl named Ada was playing in the sand. She saw something white in the water. She picked "
        'it up and opened it. "Nico," she read. She liked the smile.\n'
        "Ada made a boat too and drew a flower on it. But the river did not flow back. So she walked up the river, past "
        "the bridge and past the rocks. There she saw a boy with paper in his hands.\n"
        '"Are you Nico?" she asked. "I have a boat for you."\n'
        "Nico was so surprised! After that, they made boats together every Sunday.",
    ),
    (
        "A tiny ant carries a big leaf. The others help her.",
        "An ant named Dot found a big green leaf. It was perfect for the roof of her house. She tried to lift it, but it "
        "was too heavy.\n"
        "A beetle walked by. "
        '"That leaf is too big for you," he said, and he walked on. A snail came by. "You should leave it," she said.\n'
        "Dot did not want to leave it. She pulled and pushed. The leaf moved a little. Then it started to rain.\n"
        '"My house has no roof," said Dot. "I will get all wet!"\n'
        "The beetle and the snail got wet too. They looked at the big leaf. "
        '"If we help you, can we sit under it?" asked the beetle.\n'
        '"Yes!" said Dot. They all lifted together and carried the leaf to the house. They sat under it, warm and dry, '
        "and listened to the rain.",
    ),
    (
        "Kim is sick in bed. Her friends bring her soup and a funny song.",
        "Kim was sick. Her nose was red, and her head felt hot. She had to stay in bed. Outside, the sun was shining, and "
        "she could hear the other children play.\n"
        '"It is not fair," said Kim. She felt sad and alone.\n'
        "Then she heard a knock on the door. It was her friends Ali and Rose. Ali had a pot of soup. Rose had a drum.\n"
        '"We cannot play without you," said Rose. "So we made you a song."\n'
        "They sang a funny song about a frog with a cold. Every time the frog sneezed, Rose hit the drum. Boom! Kim "
        "laughed so much that she forgot her red nose.\n"
        "She ate the soup and slept well. The next day she felt much better, and she ran outside to hug her friends.",
    ),
    (
        "A king has a big castle but no one to play with. He opens the gate.",
        "Long ago, there was a king who lived in a big castle. He had gold and fine clothes. But every day he sat on his "
        "chair and was bored.\n"
        '"I have everything," he said. "Why am I not happy?"\n'
        "From his window he saw children playing in the field. They had only a ball made of old socks, but they were "
        "laughing.\n"
        "The king walked down the stairs. He opened the big gate and went to the children. "
        '"May I play with you?" he asked.\n'
        '"Can you catch?" asked a small boy, and he threw the ball. The king caught it, and his crown fell into the '
        "grass. Everyone laughed, and the king laughed most of all.\n"
        "From then on, the gate was always open, and the king was never bored again.",
    ),
    (
        "Tara wants a pet fish to talk. She learns that friends can listen in other ways.",
        "Tara had a fish named Goldie. Goldie was orange and swam in a round bowl. Every day Tara said, "
        '"Hello, Goldie!" But Goldie never said hello back.\n'
        '"My fish does not like me," said Tara. "She never talks."\n'
        '"Fish cannot talk," said her brother. "But look at what she does when you come."\n'
        "Tara walked to the bowl. Goldie swam to the glass right away. Tara moved to the left, and Goldie moved to the "
        "left. Tara moved to the right, and Goldie moved to the right. Goldie was playing with her!\n"
        "Tara laughed. "
        '"You do like me!" she said. She gave Goldie some food and told her about her day. Goldie listened with her big '
        "round eyes.",
    ),
]
