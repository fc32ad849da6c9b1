package workload

import (
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/service"
)

// Kind is the name of a generated workload.
type Kind string

// The generated workloads.
const (
	// ToT15 is Tree of Thoughts with 15 requests per tree: 1+2+4+8 (SkyLB 5.1).
	ToT15 Kind = "tot15"
	// ToT30 is the same tree with two calls per node: 2+4+8+16.
	ToT30 Kind = "tot30"
	// Mixed has trees of 85 requests in the heavy region and of 15 in the others (SkyLB 5.1, fig. 8d).
	Mixed Kind = "mixed"
	// Arena is multi-turn chat with the lengths of Chatbot Arena.
	Arena Kind = "arena"
	// WildChat is multi-turn chat with the longer lengths of WildChat.
	WildChat Kind = "wildchat"
	// Groups is single calls in 64 equally frequent groups, each with its own prompt of 2048 tokens
	// before the question (SGLang's benchmark).
	Groups Kind = "groups"
	// Shared, Bursts and Programs are cases that hashing by user handles badly (SkyLB 3.2).
	// Shared is single calls by users who share long prompts; a quarter of the calls have
	// the user's own prompt. Bursts is up to four concurrent calls with a user's own long
	// prompt. Programs is up to four concurrent calls with different long prompts.
	Shared   Kind = "shared"
	Bursts   Kind = "bursts"
	Programs Kind = "programs"
	// Completion is single calls with long prompts that share nothing, and short responses: code
	// completion (Splitwise, Patel et al., ISCA 2024).
	Completion Kind = "completion"
	// Contexts is single calls about one of 150 equally frequent long contexts, with one of five questions
	// each: llm-d's benchmark of precise prefix-cache scheduling.
	Contexts Kind = "contexts"
)

// Kinds returns the generated workloads.
func Kinds() []Kind {
	return []Kind{ToT15, ToT30, Mixed, Arena, WildChat, Groups, Shared, Bursts, Programs, Completion, Contexts}
}

// DefaultMaxContext is the maximum of prompt plus response of a generated request, in tokens. It limits
// the tail of the log-normal lengths: a context of 16,384 fits every built-in engine profile; the
// smallest KV cache has 21,000 tokens.
const DefaultMaxContext = 16384

// MinContext is the minimum context of a generator: it fits the longest opening of a conversation and
// the longest response.
const MinContext = 1024

// Options configures one closed-loop client.
type Options struct {
	// Seed, Region and Client together determine the client's random numbers.
	Seed uint64
	// Region is the client's place; its templates and users belong to it.
	Region string
	// Client is the number of the client in its region, from 0.
	Client int
	// Heavy marks the region whose trees branch four ways in Mixed.
	Heavy bool
	// Model and Tier are set in every request.
	Model string
	Tier  service.Tier
	// MaxContext limits prompt plus response, in tokens; 0 = DefaultMaxContext.
	MaxContext int
	// Lengths multiplies the medians of user messages and responses, Sigma the spread of their logarithms;
	// 0 = 1. Limits of lengths do not change.
	Lengths, Sigma float64
	// Once ends the client with its first session, as in an open loop: Done and Failed return no further
	// session.
	Once bool
}

// Limits of the factors in Options: beyond them every length is at its limit.
const (
	MaxLengths = 100
	MaxSigma   = 10
)

// NewClient returns a closed-loop client of a workload. It returns an error for an unknown workload,
// which lists the known ones, for a MaxContext below MinContext, and for factors that are negative or
// too large.
func NewClient(kind Kind, o Options) (Client, error) {
	if o.MaxContext == 0 {
		o.MaxContext = DefaultMaxContext
	}
	if o.MaxContext < MinContext {
		return nil, fmt.Errorf("creating a %s client: context: must be at least %d tokens, got %d", kind, MinContext, o.MaxContext)
	}
	if !(o.Lengths >= 0 && o.Lengths <= MaxLengths) || !(o.Sigma >= 0 && o.Sigma <= MaxSigma) {
		return nil, fmt.Errorf("creating a %s client: lengths must be at most %d times and sigmas at most %d times the workload's, got %v and %v",
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
	case Completion:
		return newBatch(base, completionShape), nil
	case Contexts:
		return newBatch(base, contextsShape), nil
	}
	return nil, fmt.Errorf("unknown workload %q: must be %s", kind, KindList())
}

// scale applies the factors to a length.
func (o *Options) scale(l logNormal) logNormal {
	return logNormal{o.Lengths * l.median, o.Sigma * l.sigma}
}

// IsKnown reports whether name is a generated workload.
func IsKnown(name string) bool { return slices.Contains(Kinds(), Kind(name)) }

// KindList returns the names of the generated workloads for an error message.
func KindList() string {
	var names []string
	for _, k := range Kinds() {
		names = append(names, string(k))
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// HeavyRegion returns the region whose trees branch four ways in Mixed: the first one in the US,
// with or without its cloud, otherwise the first one.
func HeavyRegion(regions []string) string {
	for _, r := range regions {
		if name := service.Region(r).ShortName(); name == "us" || strings.HasPrefix(name, "us-") {
			return r
		}
	}
	if len(regions) == 0 {
		return ""
	}
	return regions[0]
}

// DefaultClients returns the default number of clients in a region: the counts of SkyLB's experiments
// (5.1), in which the US has the most.
func DefaultClients(kind Kind, heavy bool) int {
	type counts struct{ heavy, other int }
	table := map[Kind]counts{
		ToT15:      {40, 20},
		ToT30:      {40, 20},
		Mixed:      {2, 20},
		Arena:      {80, 80},
		WildChat:   {40, 30},
		Groups:     {40, 40},
		Shared:     {40, 40},
		Bursts:     {20, 20},
		Programs:   {20, 20},
		Completion: {20, 20},
		Contexts:   {40, 40},
	}
	if heavy {
		return table[kind].heavy
	}
	return table[kind].other
}

// base holds the common state of closed-loop clients.
type base struct {
	Options
	key      uint64
	seq      int
	sessions int
}

// request returns a request with the common fields of the client's requests.
func (b *base) request(session, user string, messages []Message, input, output, turn int) Request {
	r := Request{
		Seq: b.seq, AnswerOf: b.seq, Session: session, User: user, Region: b.Region, Model: b.Model, Tier: b.Tier,
		Messages: messages, InputTokens: input, OutputTokens: output, Turn: turn,
	}
	b.seq++
	return r
}

// nextSession returns the key of a new session's random numbers.
func (b *base) nextSession() uint64 {
	key := keyOf("session", b.key, uint64(b.sessions))
	b.sessions++
	return key
}
