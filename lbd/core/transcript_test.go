package core

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

var update = flag.Bool("update", false, "write the transcripts' answers instead of checking them")

// A transcript is a script of events with the balancer's actions after each: a line per event, and
// its actions indented below it. "# ..." is a comment. "at MS" advances time. See run for the
// syntax.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replayScript(t, string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("%s: the answers differ; got\n%s", file, got)
			}
		})
	}
}

type script struct {
	t   *testing.T
	b   *Balancer
	now time.Duration
}

func replayScript(t *testing.T, text string) string {
	s := &script{t: t}
	var out bytes.Buffer
	for n, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if strings.HasPrefix(line, "  ") {
			continue // an old action
		}
		fmt.Fprintln(&out, line)
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		for _, answer := range s.line(n+1, words) {
			fmt.Fprintln(&out, "  "+answer)
		}
	}
	return out.String()
}

// args returns the name=value words of a line.
type args map[string]string

func (a args) int(name string, def int) int {
	if v, ok := a[name]; ok {
		n, err := strconv.Atoi(v)
		if err != nil {
			panic(err)
		}
		return n
	}
	return def
}

func (a args) maybe(name string) policy.Maybe[int] {
	if _, ok := a[name]; !ok {
		return policy.Maybe[int]{}
	}
	return policy.Known(a.int(name, 0))
}

// share converts a figure in percent to a share.
func (a args) share(name string) policy.Maybe[float64] {
	if _, ok := a[name]; !ok {
		return policy.Maybe[float64]{}
	}
	return policy.Known(float64(a.int(name, 0)) / 100)
}

// list returns a comma-separated list; nil if it is missing.
func (a args) list(name string) []string {
	if a[name] == "" {
		return nil
	}
	return strings.Split(a[name], ",")
}

// adapters returns the adapters of a heartbeat; unknown without the word.
func (a args) adapters() policy.Maybe[[]string] {
	if _, ok := a["adapters"]; !ok {
		return policy.Maybe[[]string]{}
	}
	return policy.Known(append([]string{}, a.list("adapters")...))
}

func (s *script) line(n int, words []string) []string {
	a, name := args{}, ""
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			a[k] = v
		} else {
			name = w
		}
	}
	switch words[0] {
	case "balancer":
		s.b = New(s.config(a))
		return nil
	case "reconfigure":
		return answersOf(s.b.Reconfigure(s.now, s.config(a)))
	case "at":
		ms, err := strconv.Atoi(name)
		if err != nil {
			s.t.Fatalf("line %d: %v", n, err)
		}
		s.now = time.Duration(ms) * time.Millisecond
		return nil
	case "load":
		return []string{describeLoad(s.b.ModelLoads(s.now))}
	case "limits":
		var all []string
		for _, v := range s.b.Snapshot(s.now).Replicas {
			limit := "none"
			if v.OutstandingLimit.Known {
				limit = strconv.Itoa(v.OutstandingLimit.Value)
			}
			all = append(all, fmt.Sprintf("%s: %d of %s", v.ID, v.Outstanding, limit))
		}
		return all
	case "counts":
		c := s.b.Snapshot(s.now).Counts
		return []string{fmt.Sprintf("%+v", c)}
	}
	ev, ok := event(words[0], name, a)
	if !ok {
		s.t.Fatalf("line %d: unknown word %q", n, words[0])
	}
	return answersOf(s.b.Step(s.now, ev))
}

func answersOf(actions []Action) (answers []string) {
	for _, act := range actions {
		answers = append(answers, describe(act))
	}
	return answers
}

func (s *script) config(a args) Config {
	p, err := policy.New(a["policy"])
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := DefaultConfig(p)
	if cfg.Push, err = ParsePush(a["push"]); err != nil {
		s.t.Fatal(err)
	}
	cfg.QueueLimit = a.int("queue", cfg.QueueLimit)
	cfg.MaxAttempts = a.int("tries", cfg.MaxAttempts)
	cfg.RetryBackoff = time.Duration(a.int("retry-wait", int(cfg.RetryBackoff.Milliseconds()))) * time.Millisecond
	cfg.UnconfirmedLimit = a.int("unconfirmed", cfg.UnconfirmedLimit)
	cfg.OutstandingLimit = a.int("outstanding", cfg.OutstandingLimit)
	cfg.TreeBytes = a.int("tree", cfg.TreeBytes)
	if cfg.Order, err = ParseOrder(a["queue-order"]); err != nil {
		s.t.Fatal(err)
	}
	cfg.SevereAfter = time.Duration(a.int("tau-n", int(cfg.SevereAfter.Milliseconds()))) * time.Millisecond
	cfg.UrgentBefore = time.Duration(a.int("tau-p", int(cfg.UrgentBefore.Milliseconds()))) * time.Millisecond
	cfg.MaxWait = time.Duration(a.int("max-wait", int(cfg.MaxWait.Milliseconds()))) * time.Millisecond
	cfg.MaxColdWait = time.Duration(a.int("max-cold-wait", int(cfg.MaxColdWait.Milliseconds()))) * time.Millisecond
	for _, model := range strings.Split(a["scale-to-zero"], ",") {
		if model != "" {
			cfg.ScaleToZero = map[string]bool{model: true}
		}
	}
	if a["order"] == "earliest" {
		cfg.TreeOrder = prefix.EarliestInserted
	}
	return cfg
}

// letters returns a prompt with one block per letter.
func letters(s string) prefix.Key {
	h := prefix.NewHasher(1)
	for _, l := range s {
		_, _ = h.WriteString(strings.Repeat(string(l), prefix.BlockBytes))
	}
	return h.Key()
}

func event(word, name string, a args) (Event, bool) {
	model := a["model"]
	if model == "" {
		model = "m"
	}
	ms := func(k string) time.Duration { return time.Duration(a.int(k, 0)) * time.Millisecond }
	switch word {
	case "arrive":
		return Event{Kind: EventArrived, Request: &Request{ID: name, Model: model, Adapter: a["adapter"], Prompt: letters(a["prompt"]), Session: a["session"], Tenant: a["tenant"], Tier: service.Tier(a["tier"]), PromptTokens: a.int("tokens", 0), MaxTokens: a.int("max", 0), From: a["from"], Hop: Hop(a["hop"]), MaxWait: ms("wait")}}, true
	case "first":
		return Event{Kind: EventFirstToken, ID: name}, true
	case "progress":
		return Event{Kind: EventProgress, Target: name, Tokens: a.int("tokens", 0)}, true
	case "finish":
		return Event{Kind: EventFinished, ID: name, Outcome: &Outcome{Key: letters(a["key"]), OutputTokens: a.maybe("output"), CachedTokens: a.maybe("cached")}}, true
	case "fail":
		return Event{Kind: EventFailed, ID: name, Outcome: &Outcome{Retryable: a["started"] == "", Unreachable: a["unreachable"] != "", Refused: a["lacks"] != "", LacksModel: a["lacks"] != ""}}, true
	case "cancel":
		return Event{Kind: EventCancelled, ID: name}, true
	case "bounced":
		return Event{Kind: EventBounced, ID: name, Outcome: &Outcome{LacksModel: a["lacks"] != ""}}, true
	case "replica":
		return Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: name, Model: model, MaxOutstanding: a.int("limit", 0)}}, true
	case "remove":
		return Event{Kind: EventReplicaRemoved, Target: name}, true
	case "drain":
		return Event{Kind: EventReplicaDraining, Target: name}, true
	case "names":
		return Event{Kind: EventReplicaNames, Target: name, Names: a.list("are")}, true
	case "report":
		return Event{Kind: EventReplicaReport, Target: name, Report: &ProbeReport{Ready: a["down"] == "", Reason: a["down"], Pending: a.maybe("pending"), Running: a.maybe("running"), KV: a.share("kv"), Age: ms("age"), MetricsAge: ms("lag"), Slots: a.maybe("slots")}}, true
	case "peer":
		return Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: name, SameRegion: a["same"] != ""}}, true
	case "remove-peer":
		return Event{Kind: EventPeerRemoved, Target: name}, true
	case "heartbeat":
		return Event{Kind: EventPeerReport, Target: name, PeerReport: &PeerReport{Age: ms("age"), RTT: 2 * ms("age"), Models: []ModelLoad{{Model: model, Replicas: a.int("replicas", 1), Available: a.int("available", 1), Queued: a.int("queued", 0), KV: a.share("kv"), Adapters: a.adapters()}}}}, true
	case "tick":
		return Event{Kind: EventTick}, true
	}
	return Event{}, false
}

// describeLoad omits unknown figures.
func describeLoad(loads []ModelLoad) string {
	var all []string
	for _, l := range loads {
		s := fmt.Sprintf("{Model:%s Replicas:%d Available:%d Queued:%d Outstanding:%d", l.Model, l.Replicas, l.Available, l.Queued, l.Outstanding)
		if l.KV.Known {
			s += fmt.Sprintf(" KV:%.3g", l.KV.Value)
		}
		if l.Adapters.Known {
			s += fmt.Sprintf(" Adapters:%v", l.Adapters.Value)
		}
		all = append(all, s+"}")
	}
	return "[" + strings.Join(all, " ") + "]"
}

func describe(a Action) string {
	s := fmt.Sprintf("%s %s", a.Kind, a.ID)
	if a.Target != "" {
		s += " -> " + a.Target
	}
	if a.Hop != "" {
		s += " hop=" + string(a.Hop)
	}
	if d := a.Decision; d != nil {
		s += fmt.Sprintf(" (%s, match %d of %d, queued %v, try %d)", d.Reason, d.MatchBytes/prefix.BlockBytes, d.PromptBytes/prefix.BlockBytes, d.Waited, d.Attempt)
	} else if a.Reason != "" {
		s += " (" + a.Reason + ")"
	}
	return s
}
