package workload

import (
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/service"
)

// Kind names a generated workload.
type Kind string

// The generated workloads.
const (
	// ToT15 is Tree of Thoughts with 15 requests a tree: 1+2+4+8 (SkyLB 5.1).
	ToT15 Kind = "tot15"
	// ToT30 is the same tree with each node issuing its two calls: 2+4+8+16.
	ToT30 Kind = "tot30"
	// Mixed has trees of 85 requests in the heavy region and of 15 elsewhere (SkyLB 5.1, fig. 8d).
	Mixed Kind = "mixed"
	// Arena is multi-turn chat with the lengths of Chatbot Arena.
	Arena Kind = "arena"
	// WildChat is multi-turn chat with the longer lengths of WildChat.
	WildChat Kind = "wildchat"
	// Groups is single calls in 64 groups as frequent as each other, each with a
	// prompt of 2048 tokens of its own before the question (SGLang's benchmark).
	Groups Kind = "groups"
	// Shared is single calls by users who share long prompts with each other (a
	// quarter of the calls have the user's own instead), Bursts is calls of a user's
	// own long prompt, up to four at once, and Programs up to four calls at once that
	// each have another long prompt: what hashing by user does not see (SkyLB 3.2).
	Shared   Kind = "shared"
	Bursts   Kind = "bursts"
	Programs Kind = "programs"
)

// Kinds lists the generated workloads.
func Kinds() []Kind {
	return []Kind{ToT15, ToT30, Mixed, Arena, WildChat, Groups, Shared, Bursts, Programs}
}

// DefaultMaxContext is the longest prompt plus answer that a generated request
// has, in tokens. It bounds the tail of the log-normal lengths: a context of
// 16,384 fits every engine profile with its KV cache of 21,000 tokens.
const DefaultMaxContext = 16384

// MinContext is the least context a generator works with: the longest opening
// of a conversation and the longest answer fit into it.
const MinContext = 1024

// Options configures one closed-loop client.
type Options struct {
	// Seed, Region and Client together choose the client's random numbers.
	Seed uint64
	// Region is the place the client sits in; its templates and users belong to it.
	Region string
	// Client numbers the clients of a region, from 0.
	Client int
	// Heavy marks the region whose trees branch four ways in Mixed.
	Heavy bool
	// Model and Tier are copied into every request.
	Model string
	Tier  service.Tier
	// MaxContext bounds prompt plus answer, in tokens; 0 = DefaultMaxContext.
	MaxContext int
	// Lengths multiplies the medians of what users write and of the answers,
	// Sigma the spread of their logarithms; 0 = 1. What bounds a length stays.
	Lengths, Sigma float64
	// Once ends the client with its first session: Done and Failed then give
	// nothing more. So sessions of an open loop run.
	Once bool
}

// The factors that Options takes: beyond them every length is at its bound.
const (
	MaxLengths = 100
	MaxSigma   = 10
)

// NewClient makes a closed-loop client of a workload. An unknown workload is an
// error that lists the known ones, and so are a MaxContext below MinContext and
// factors that are negative or too large.
func NewClient(kind Kind, o Options) (Client, error) {
	if o.MaxContext == 0 {
		o.MaxContext = DefaultMaxContext
	}
	if o.MaxContext < MinContext {
		return nil, fmt.Errorf("making a %s client: the context must be at least %d tokens, got %d", kind, MinContext, o.MaxContext)
	}
	if !(o.Lengths >= 0 && o.Lengths <= MaxLengths) || !(o.Sigma >= 0 && o.Sigma <= MaxSigma) {
		return nil, fmt.Errorf("making a %s client: lengths must be at most %d times and sigmas at most %d times the workload's, got %v and %v",
			kind, MaxLengths, MaxSigma, o.Lengths, o.Sigma)
	}
	if o.Lengths == 0 {
		o.Lengths = 1
	}
	if o.Sigma == 0 {
		o.Sigma = 1
	}
	base := base{Options: o, key: keyOf(string(kind)+"/"+o.Region, o.Seed, uint64(o.Client))}
	switch kind {
	case ToT15:
		return newTree(base, treeShape{roots: 1, branch: 2}), nil
	case ToT30:
		return newTree(base, treeShape{roots: 2, branch: 2, identical: 0.7}), nil
	case Mixed:
		if o.Heavy {
			return newTree(base, treeShape{roots: 1, branch: 4}), nil
		}
		return newTree(base, treeShape{roots: 1, branch: 2}), nil
	case Arena:
		return newChat(base, chatShape{user: o.scale(logNormal{40, 1.0}), output: o.scale(logNormal{160, 0.75})}), nil
	case WildChat:
		return newChat(base, chatShape{user: o.scale(logNormal{90, 1.4}), output: o.scale(logNormal{280, 0.7})}), nil
	case Groups:
		return newBatch(base, groupsShape), nil
	case Shared:
		return newBatch(base, sharedShape), nil
	case Bursts:
		return newBatch(base, burstsShape), nil
	case Programs:
		return newBatch(base, programsShape), nil
	}
	return nil, fmt.Errorf("unknown workload %q: want %s", kind, kindList())
}

// scale applies the factors to a length of the workload.
func (o *Options) scale(l logNormal) logNormal {
	return logNormal{o.Lengths * l.median, o.Sigma * l.sigma}
}

// Known tells whether name is a generated workload.
func Known(name string) bool { return slices.Contains(Kinds(), Kind(name)) }

func kindList() string {
	var names []string
	for _, k := range Kinds() {
		names = append(names, string(k))
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// HeavyRegion chooses the region whose trees branch four ways in Mixed: the
// first one in the US, else the first one.
func HeavyRegion(regions []string) string {
	for _, r := range regions {
		if r == "us" || strings.HasPrefix(r, "us-") {
			return r
		}
	}
	if len(regions) == 0 {
		return ""
	}
	return regions[0]
}

// DefaultClients is how many clients a region has when nothing else is said:
// the counts of SkyLB's experiments (5.1), where the US carries the most.
func DefaultClients(kind Kind, heavy bool) int {
	type counts struct{ heavy, other int }
	table := map[Kind]counts{
		ToT15:    {40, 20},
		ToT30:    {40, 20},
		Mixed:    {2, 20},
		Arena:    {80, 80},
		WildChat: {40, 30},
		Groups:   {40, 40},
		Shared:   {40, 40},
		Bursts:   {20, 20},
		Programs: {20, 20},
	}
	if heavy {
		return table[kind].heavy
	}
	return table[kind].other
}

// base is what every closed-loop client has.
type base struct {
	Options
	key      uint64
	seq      int
	sessions int
}

// request fills in what all requests of a client have in common.
func (b *base) request(session, user string, messages []Message, input, output, turn int) Request {
	r := Request{
		Seq: b.seq, AnswerOf: b.seq, Session: session, User: user, Region: b.Region, Model: b.Model, Tier: b.Tier,
		Messages: messages, InputTokens: input, OutputTokens: output, Turn: turn,
	}
	b.seq++
	return r
}

// nextSession is the key of a new session's random numbers.
func (b *base) nextSession() uint64 {
	key := keyOf("session", b.key, uint64(b.sessions))
	b.sessions++
	return key
}
