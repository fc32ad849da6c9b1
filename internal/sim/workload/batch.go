package workload

import (
	"fmt"
	"math/rand/v2"
)

// Limits of calls with long prefixes.
const (
	batchUsers     = 60 // per region, as in the chats
	maxBatchOutput = 512
)

// batchShape describes calls with long prefixes, or without any.
type batchShape struct {
	users    int     // per region; a few users make most of the sessions
	prefixes int     // number of shared prefixes
	prefix   int     // tokens per prefix; 0 = calls share nothing
	own      float64 // probability that a call has the user's own prefix instead
	even     bool    // shared prefixes are equally frequent; otherwise a few make most of the calls
	perCall  bool    // each call of a session draws its prefix; otherwise all have the same
	maxCalls int     // maximum concurrent calls of a session, mostly few
	// questions is the number of different questions after each prefix; 0 = each call has a new one.
	questions int
	question  logNormal
	output    logNormal
}

// groupsShape is SGLang's benchmark of shared prefixes: questions of 128 tokens after one of 64 prompts
// of 2048, with responses of 256.
var groupsShape = batchShape{
	users: batchUsers, prefixes: 64, prefix: 2048, even: true, maxCalls: 1, question: logNormal{128, 0.1}, output: logNormal{256, 0.1},
}

// contextsShape is llm-d's benchmark of precise prefix-cache scheduling: 150 contexts of 6,000 tokens, with five
// users each who ask a question of 1,200 tokens. Its responses have 1,000 tokens; here at most 512.
var contextsShape = batchShape{
	users: batchUsers, prefixes: 150, prefix: 6000, even: true, maxCalls: 1, questions: 5, question: logNormal{1200, 0}, output: logNormal{512, 0},
}

// completionShape has the medians of the coding service that Splitwise measured (its section 3): prompts
// of 1,500 tokens and responses of 13. The spreads are ours: most responses are below 50 tokens.
var completionShape = batchShape{users: batchUsers, maxCalls: 1, question: logNormal{1500, 0.9}, output: logNormal{13, 0.9}}

// The lengths of the three workloads in which hashing by user fails (SkyLB 3.2) are those of the
// paper's chats: a template of the arena workload, and the question and response of a turn of it.
//
// The paper describes these workloads in words. Two of its numbers determine a parameter:
//
//   - Two requests of one user have 2.47 times as much of a prefix in common as
//     those of two users in Chatbot Arena, the log whose users share more (figure
//     5). So 0.26 of sharedShape's calls have their user's own prefix, given how
//     often the shared ones meet.
//   - A user's concurrent requests vary by up to 4 times: burstsShape's maximum, and
//     because the paper has no other number, programsShape's.
//
// The other two numbers are fitted, so that the advantage of the global view over hashing approximates
// figure 6: 20 shared prefixes, for both shared and program prefixes, and the 30 bursty users. Both
// determine how far the working set exceeds one replica's cache of 21,000 tokens, which the paper does
// not report.
var (
	sharedShape = batchShape{
		users: batchUsers, prefixes: 20, prefix: templateTokens, own: 0.26, maxCalls: 1, question: logNormal{40, 1.0}, output: logNormal{160, 0.75},
	}
	burstsShape = batchShape{
		users: 30, prefix: templateTokens, own: 1, maxCalls: 4, question: logNormal{40, 1.0}, output: logNormal{160, 0.75},
	}
	programsShape = batchShape{
		users: batchUsers, prefixes: 20, prefix: templateTokens, perCall: true, maxCalls: 4, question: logNormal{40, 1.0}, output: logNormal{160, 0.75},
	}
)

// batch is a client that makes several calls at once, as one of its region's users, and the next ones
// after all have ended.
type batch struct {
	base
	shape batchShape
	open  map[int]bool // by Seq
}

func newBatch(b base, shape batchShape) *batch {
	shape.question, shape.output = b.scale(shape.question), b.scale(shape.output)
	// A prefix is limited to half of the context.
	shape.prefix = min(shape.prefix, b.MaxContext/2)
	return &batch{base: b, shape: shape, open: map[int]bool{}}
}

// Next returns the calls of a session.
func (c *batch) Next() []Request {
	random := stream(c.nextSession())
	user := skewed(random, c.shape.users)
	name := fmt.Sprintf("%s-user-%d", c.Region, user)
	prefix := c.prefix(random, user)
	var calls []Request
	for range 1 + skewed(random, c.shape.maxCalls) {
		if c.shape.perCall {
			prefix = c.prefix(random, user)
		}
		output := c.shape.output.draw(random, 1, min(maxBatchOutput, c.MaxContext-c.shape.prefix-1))
		question := c.shape.question.draw(random, 1, c.MaxContext-c.shape.prefix-output)
		var messages []Message
		if c.shape.prefix > 0 {
			messages = append(messages, Message{"system", Text(c.shape.prefix, prefix)})
		}
		text := random.Uint64()
		if c.shape.questions > 0 {
			text = keyOf("question", prefix, uint64(random.IntN(c.shape.questions)))
		}
		messages = append(messages, Message{"user", Text(question, text)})
		r := c.request(name, name, messages, c.shape.prefix+question, output, 0)
		c.open[r.Seq] = true
		calls = append(calls, r)
	}
	return calls
}

// prefix returns the key of a call's prefix.
func (c *batch) prefix(random *rand.Rand, user int) uint64 {
	switch {
	case c.shape.own > 0 && random.Float64() < c.shape.own:
		return keyOf("prefix of a user/"+c.Region, uint64(user))
	case c.shape.even:
		return keyOf("prefix", uint64(random.IntN(c.shape.prefixes)))
	}
	return keyOf("prefix", uint64(skewed(random, c.shape.prefixes)))
}

// skewed draws from 0 to n-1 as the square of a uniform draw, so that few values are frequent.
func skewed(r *rand.Rand, n int) int {
	u := r.Float64()
	return int(float64(n) * u * u)
}

// Done ends a call, and the session with its last one.
func (c *batch) Done(r Request, _ string) []Request {
	if !c.open[r.Seq] {
		return nil
	}
	delete(c.open, r.Seq)
	if len(c.open) > 0 || c.Once {
		return nil
	}
	return c.Next()
}

// Failed is Done: no other call depends on a call.
func (c *batch) Failed(r Request) []Request { return c.Done(r, "") }
