package workload

import (
	"fmt"
	"math/rand/v2"
)

// Common parameters of the chats of Chatbot Arena and WildChat.
const (
	headerTokens   = 30
	templates      = 8   // per region
	templateTokens = 400 // each
	templateShare  = 0.15
	minTurns       = 2
	maxTurns       = 10
	chatUsers      = 60 // per region
	maxChatOutput  = 512
)

// chatShape holds the lengths of a chat workload.
type chatShape struct {
	user, output logNormal
}

// chat is a client with one conversation after the other, each as one of its region's users; a turn
// starts after the previous response.
type chat struct {
	base
	shape chatShape

	random   *rand.Rand
	user     string
	messages []Message
	tokens   int // of messages
	turn     int
	turns    int
	waiting  int // Seq of the request in flight
}

func newChat(b base, shape chatShape) *chat { return &chat{base: b, shape: shape, waiting: -1} }

// Next starts a conversation.
func (c *chat) Next() []Request {
	c.random = stream(c.nextSession())
	c.user = fmt.Sprintf("%s-user-%d", c.Region, skewedUser(c.random))
	c.turn, c.turns = 0, turnCount(c.random)
	c.messages = []Message{{"system", Text(headerTokens, keyOf("chat header"))}}
	c.tokens = headerTokens
	return c.ask(c.template())
}

// Done returns the next turn, with the actual response before it.
func (c *chat) Done(r Request, response string) []Request {
	if r.Seq != c.waiting {
		return nil
	}
	c.turn++
	c.messages = extend(c.messages, Message{"assistant", response})
	c.tokens += CountTokens(response)
	if c.turn == c.turns {
		return c.endConversation()
	}
	return c.ask("")
}

// Failed abandons the conversation.
func (c *chat) Failed(r Request) []Request {
	if r.Seq != c.waiting {
		return nil
	}
	return c.endConversation()
}

// endConversation ends a conversation and starts another, unless Once is set.
func (c *chat) endConversation() []Request {
	if c.Once {
		c.waiting = -1
		return nil
	}
	return c.Next()
}

// ask adds a user message that starts with opening. A message has at most half of the remaining
// context, so that the long tail of lengths rarely ends a conversation; a conversation that has filled
// its context ends and another one starts.
func (c *chat) ask(opening string) []Request {
	fixed := len(opening) / wordBytes
	output := c.shape.output.draw(c.random, 1, maxChatOutput)
	available := c.MaxContext - c.tokens - fixed - output
	if available < 1 {
		return c.endConversation() // ends: a first turn always fits into MinContext
	}
	n := c.shape.user.draw(c.random, 1, (available+1)/2)
	c.messages = extend(c.messages, Message{"user", opening + Text(n, c.random.Uint64())})
	c.tokens += fixed + n
	r := c.request(c.user, c.user, c.messages, c.tokens, output, c.turn)
	c.waiting = r.Seq
	return []Request{r}
}

// template returns the opening of some conversations: one of the region's templates, or "".
func (c *chat) template() string {
	if c.random.Float64() >= templateShare {
		return ""
	}
	return Text(templateTokens, keyOf("template/"+c.Region, uint64(c.random.IntN(templates))))
}

// skewedUser draws a user: a few users have most of the conversations.
func skewedUser(r *rand.Rand) int {
	u := r.Float64()
	return int(chatUsers * u * u)
}

// turnCount draws 2 + Geom(1/2), the number of failures before a success, up to 10.
func turnCount(r *rand.Rand) int {
	n := minTurns
	for n < maxTurns && r.Float64() < 0.5 {
		n++
	}
	return n
}
