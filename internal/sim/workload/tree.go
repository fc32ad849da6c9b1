package workload

import (
	"fmt"
	"math"
)

// Lengths of a Tree of Thoughts over grade-school questions, in tokens: the preamble of every question,
// the question, the follow-up prompt of each level below the root, and the response of each level.
const (
	preambleTokens = 98
	maxTreeOutput  = 512
	maxQuestion    = 2048
)

var (
	questionTokens = logNormal{60, 0.35}
	followUpTokens = []int{0, 45, 32, 25}
	treeOutputs    = []logNormal{{105, 0.4}, {150, 0.4}, {190, 0.4}, {110, 0.4}}
)

// treeShape is the shape of a tree.
type treeShape struct {
	// roots is the number of calls for the question, branch the number of calls for each response.
	roots, branch int
	// identical is the probability that a sibling repeats the first one, with the same prompt and
	// response.
	identical float64
}

// tree is a client that solves one question after the other with Tree of Thoughts: siblings run
// concurrently, a node's children start after its response, and the next question starts when no node is
// left.
type tree struct {
	base
	shape     treeShape
	followUps []int       // by level, in tokens
	outputs   []logNormal // by level
	question  question
	nodes     map[int]node
}

// question is the root of the tree being solved.
type question struct {
	key     uint64
	session string
	tokens  int
}

// node is a call in flight.
type node struct {
	key     uint64 // determines the random numbers of the node's children
	context []Message
	tokens  int // of context
}

func newTree(b base, shape treeShape) *tree {
	t := &tree{base: b, shape: shape, nodes: map[int]node{}}
	for level := range treeOutputs {
		t.followUps = append(t.followUps, int(math.Round(b.Lengths*float64(followUpTokens[level]))))
		t.outputs = append(t.outputs, b.scale(treeOutputs[level]))
	}
	return t
}

// Next starts a tree.
func (t *tree) Next() []Request {
	key := t.nextSession()
	t.question = question{
		key:     key,
		session: fmt.Sprintf("question-%016x", key),
		// A root always fits, so that every tree has one.
		tokens: t.scale(questionTokens).draw(stream(key), 1, min(maxQuestion, t.MaxContext-preambleTokens-1)),
	}
	return t.siblings(0, t.shape.roots, key, nil, 0)
}

// Done returns the completed node's children.
func (t *tree) Done(r Request, response string) []Request {
	n, ok := t.nodes[r.Seq]
	if !ok {
		return nil
	}
	delete(t.nodes, r.Seq)
	if r.Turn+1 < len(t.outputs) {
		context := extend(n.context, Message{"assistant", response})
		return t.orNext(t.siblings(r.Turn+1, t.shape.branch, n.key, context, n.tokens+CountTokens(response)))
	}
	return t.orNext(nil)
}

// Failed abandons the node and its subtree.
func (t *tree) Failed(r Request) []Request {
	if _, ok := t.nodes[r.Seq]; !ok {
		return nil
	}
	delete(t.nodes, r.Seq)
	return t.orNext(nil)
}

// orNext starts the next tree when this one is finished.
func (t *tree) orNext(requests []Request) []Request {
	if len(requests) == 0 && len(t.nodes) == 0 && !t.Once {
		return t.Next()
	}
	return requests
}

// siblings returns the calls of one level below one parent. They depend only on the parent's key, not
// on the order of responses.
func (t *tree) siblings(level, count int, parent uint64, context []Message, tokens int) []Request {
	var requests []Request
	for i := range count {
		key := keyOf("node", parent, uint64(level), uint64(i))
		random, variant := stream(key), uint64(i)
		same := i > 0 && random.Float64() < t.shape.identical
		if same {
			random, variant = stream(keyOf("node", parent, uint64(level), 0)), 0
		}
		prompt, added := t.prompt(level, keyOf("wording", parent, variant), variant)
		n := node{key: key, context: extend(context, prompt...), tokens: tokens + added}
		available := t.MaxContext - n.tokens
		if available < 1 {
			continue
		}
		output := t.outputs[level].draw(random, 1, min(maxTreeOutput, available))
		r := t.request(t.question.session, t.user(), n.context, n.tokens, output, level)
		if same {
			r.AnswerOf = requests[0].Seq
		}
		t.nodes[r.Seq] = n
		requests = append(requests, r)
	}
	return requests
}

// prompt returns the messages that a call adds to its context, and their length in tokens. A sibling
// with its own variant has a different follow-up; at the root it shares the preamble and the first half
// of the question.
func (t *tree) prompt(level int, key, variant uint64) ([]Message, int) {
	if level > 0 {
		return []Message{{"user", Text(t.followUps[level], key)}}, t.followUps[level]
	}
	text := Text(t.question.tokens, t.question.key)
	if variant > 0 {
		half := t.question.tokens / 2
		text = text[:half*wordBytes] + Text(t.question.tokens-half, key)
	}
	return []Message{
		{"system", Text(preambleTokens, keyOf("tree preamble"))},
		{"user", text},
	}, preambleTokens + t.question.tokens
}

func (t *tree) user() string { return fmt.Sprintf("%s-client-%d", t.Region, t.Client) }
