package workload

import (
	"fmt"
	"math/rand/v2"
)

// Lengths of the calls with long prefixes: SGLang's benchmark of shared prefixes
// asks 128 tokens after one of 64 prompts of 2048 and wants 256 back.
const (
	batchUsers     = 60 // a region's
	maxBatchOutput = 512
)

// sharing says whose the long prefixes of calls are.
type sharing uint8

const (
	sharedEvenly   sharing = iota // any caller's; all are as frequent
	sharedUnevenly                // any caller's; few make most of the calls
	ownPrefix                     // the caller's own
	sharedByCall                  // any caller's, and each call of a session has another
)

// batchShape is how calls with long prefixes look.
type batchShape struct {
	prefixes int // how many there are in all; of no meaning for ownPrefix
	prefix   int // tokens of each
	sharing  sharing
	most     int // calls that a session makes at once: 1 to most, few of them mostly
	question logNormal
	output   logNormal
}

// The long prefixes of three troubles of hashing by user (SkyLB 3.2) and of
// SGLang's balanced groups.
var (
	groupsShape   = batchShape{prefixes: 64, prefix: 2048, sharing: sharedEvenly, most: 1, question: logNormal{128, 0.1}, output: logNormal{256, 0.1}}
	sharedShape   = batchShape{prefixes: 48, prefix: 900, sharing: sharedUnevenly, most: 1, question: logNormal{90, 0.6}, output: logNormal{120, 0.5}}
	burstsShape   = batchShape{prefix: 900, sharing: ownPrefix, most: 8, question: logNormal{90, 0.6}, output: logNormal{120, 0.5}}
	programsShape = batchShape{prefixes: 48, prefix: 900, sharing: sharedByCall, most: 4, question: logNormal{90, 0.6}, output: logNormal{120, 0.5}}
)

// batch is a client that makes some calls at once, as one of its region's users,
// and the next ones when all of them were answered.
type batch struct {
	base
	shape batchShape
	open  map[int]bool // by Seq
}

func newBatch(b base, shape batchShape) *batch {
	shape.question, shape.output = b.scale(shape.question), b.scale(shape.output)
	// A prefix takes at most half of what can be asked.
	shape.prefix = min(shape.prefix, b.MaxContext/2)
	return &batch{base: b, shape: shape, open: map[int]bool{}}
}

// Next makes the calls of a session.
func (c *batch) Next() []Request {
	random := stream(c.nextSession())
	user := skewed(random, batchUsers)
	name := fmt.Sprintf("%s-user-%d", c.Region, user)
	prefix := c.prefix(random, user)
	var calls []Request
	for range 1 + skewed(random, c.shape.most) {
		if c.shape.sharing == sharedByCall {
			prefix = c.prefix(random, user)
		}
		output := c.shape.output.draw(random, 1, min(maxBatchOutput, c.MaxContext-c.shape.prefix-1))
		question := c.shape.question.draw(random, 1, c.MaxContext-c.shape.prefix-output)
		messages := []Message{
			{"system", Text(c.shape.prefix, prefix)},
			{"user", Text(question, random.Uint64())},
		}
		r := c.request(name, name, messages, c.shape.prefix+question, output, 0)
		c.open[r.Seq] = true
		calls = append(calls, r)
	}
	return calls
}

// prefix is the key of the prefix that a call has.
func (c *batch) prefix(random *rand.Rand, user int) uint64 {
	switch c.shape.sharing {
	case ownPrefix:
		return keyOf("prefix of a user/"+c.Region, uint64(user))
	case sharedEvenly:
		return keyOf("prefix", uint64(random.IntN(c.shape.prefixes)))
	}
	return keyOf("prefix", uint64(skewed(random, c.shape.prefixes)))
}

// skewed draws from 0 to n-1: the square of a uniform draw, so that few of them
// come most of the time.
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

// Failed is as Done: nothing hangs on a call.
func (c *batch) Failed(r Request) []Request { return c.Done(r, "") }
