package probe

import (
	"slices"
	"sync"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// A vLLM engine with an adapter, as it lists them, and one without it.
const (
	vllmList   = `{"data":[{"id":"llama","root":"/models/llama","parent":null,"max_model_len":8192},{"id":"sql","root":"/loras/sql","parent":"llama","max_model_len":null}]}`
	vllmNoLoRA = `{"data":[{"id":"llama","root":"/models/llama","parent":null,"max_model_len":8192}]}`
)

// lists collects the lists that a Prober reports.
type lists struct {
	mu  sync.Mutex
	all []ModelList
}

func (l *lists) take(_ string, list ModelList) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, list)
}

// drain returns the lists since the last drain.
func (l *lists) drain() []ModelList {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	return all
}

// listing runs a test with an engine that has this model list.
func listing(t *testing.T, page string, test func(t *testing.T, p *Prober, e *engine, r *reports, l *lists)) {
	e, l := newEngine(), &lists{}
	e.pages["/v1/models"] = page
	probing(t, service.ReplicaConfig{Model: "llama"}, e, Options{Listed: l.take}, func(t *testing.T, p *Prober, r *reports) {
		time.Sleep(time.Second)
		test(t, p, e, r, l)
	})
}

func TestModelListContents(t *testing.T) {
	for name, c := range map[string]struct {
		page string
		want ModelList
	}{
		"vLLM": {vllmList, ModelList{Names: []string{"llama", "sql"}, Adapters: []string{"sql"}, Complete: true, MaxModelLen: 8192}},
		"further names": {
			`{"data":[{"id":"chat","root":"/models/llama","parent":null},{"id":"llama","root":"/models/llama","parent":null},{"id":"sql","root":"/models/llama","parent":"llama"}]}`,
			ModelList{Names: []string{"chat", "llama", "sql"}, Adapters: []string{"sql"}, Aliases: []string{"chat"}, Complete: true},
		},
		"several models": {
			`{"data":[{"id":"llama","root":"llama","parent":null},{"id":"qwen","root":"qwen","parent":null},{"id":"other","parent":null}]}`,
			ModelList{Names: []string{"llama", "qwen", "other"}, Complete: true},
		},
		"roots that are no text": {
			`{"data":[{"id":"llama","root":7,"parent":null},{"id":"qwen","root":7,"parent":null}]}`,
			ModelList{Names: []string{"llama", "qwen"}, Complete: true},
		},
		"without adapters":  {vllmNoLoRA, ModelList{Names: []string{"llama"}, Complete: true, MaxModelLen: 8192}},
		"without parents":   {`{"data":[{"id":"llama"},{"id":"sql"}]}`, ModelList{Names: []string{"llama", "sql"}}},
		"impossible values": {`{"data":[{"id":"llama","parent":7,"max_model_len":-1},{"id":""}]}`, ModelList{Names: []string{"llama"}, Complete: true}},
		"text as a length":  {`{"data":[{"id":"llama","max_model_len":"8192"}]}`, ModelList{Names: []string{"llama"}}},
		"another model":     {`{"data":[{"id":"other","max_model_len":1},{"id":"llama","max_model_len":2}]}`, ModelList{Names: []string{"other", "llama"}, MaxModelLen: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			listing(t, c.page, func(t *testing.T, _ *Prober, _ *engine, _ *reports, l *lists) {
				if got := l.drain(); len(got) != 1 || !got[0].equal(&c.want) {
					t.Errorf("got %+v, want %+v", got, c.want)
				}
			})
		})
	}
}

// An adapter that is loaded or unloaded at run time is noticed within the interval of the list, without any
// interruption of the reports.
func TestListIsReadAgain(t *testing.T) {
	listing(t, vllmNoLoRA, func(t *testing.T, _ *Prober, e *engine, r *reports, l *lists) {
		l.drain()
		time.Sleep(10 * time.Second)
		if got := l.drain(); len(got) != 0 {
			t.Errorf("an unchanged list was reported: %+v", got)
		}
		for _, page := range []string{vllmList, vllmNoLoRA} {
			e.set(func(e *engine) { e.pages["/v1/models"] = page })
			time.Sleep(4 * time.Second)
			if got := l.drain(); len(got) != 1 || slices.Contains(got[0].Names, "sql") != (page == vllmList) {
				t.Errorf("got %+v of %s", got, page)
			}
		}
		if n := e.count("/v1/models"); n > 8 {
			t.Errorf("the list was requested %d times in 19 s", n)
		}
		for _, report := range r.drain() {
			if !report.Ready {
				t.Fatalf("not ready: %+v", report)
			}
		}
	})
}

// A list that cannot be read again changes nothing, and delays reports only briefly.
func TestUnreadableListChangesNothing(t *testing.T) {
	for name, change := range map[string]func(*engine){
		"error":     func(e *engine) { e.status["/v1/models"] = 500 },
		"no JSON":   func(e *engine) { e.pages["/v1/models"] = "<html>" },
		"no answer": func(e *engine) { e.slow = map[string]time.Duration{"/v1/models": time.Hour} },
	} {
		t.Run(name, func(t *testing.T) {
			listing(t, vllmList, func(t *testing.T, _ *Prober, e *engine, r *reports, l *lists) {
				l.drain()
				r.drain()
				e.set(change)
				time.Sleep(10 * time.Second)
				all := r.drain()
				if len(all) < 85 || slices.ContainsFunc(all, func(r core.ProbeReport) bool { return !r.Ready }) {
					t.Errorf("%d reports, some not ready", len(all))
				}
				if got := l.drain(); len(got) != 0 {
					t.Errorf("reported %+v", got)
				}
			})
		})
	}
}

// A replica whose list no longer contains its model is not ready: its engine was replaced.
func TestListWithoutModelEndsReadiness(t *testing.T) {
	listing(t, vllmList, func(t *testing.T, p *Prober, e *engine, _ *reports, _ *lists) {
		e.set(func(e *engine) { e.pages["/v1/models"] = `{"data":[{"id":"other","parent":null}]}` })
		time.Sleep(4 * time.Second)
		if s := p.Status()[0]; s.Ready || s.Reason != `GET /v1/models returned other, not "llama"` || s.Misconfigured != service.MisconfiguredModel {
			t.Errorf("got %+v", s)
		}
	})
}

// After a rejection the list is read soon, at most once a second, and reported even if it is the same.
func TestRecheckReadsListSoon(t *testing.T) {
	listing(t, vllmList, func(t *testing.T, p *Prober, e *engine, _ *reports, l *lists) {
		time.Sleep(200 * time.Millisecond)
		l.drain()
		before := e.count("/v1/models")
		p.Recheck("us-0")
		p.Recheck("unknown")
		time.Sleep(250 * time.Millisecond)
		if got := l.drain(); len(got) != 1 || e.count("/v1/models") != before+1 {
			t.Errorf("got %+v after %d requests", got, e.count("/v1/models")-before)
		}
		for range 20 {
			p.Recheck("us-0")
			time.Sleep(100 * time.Millisecond)
		}
		if n := e.count("/v1/models") - before; n > 3 {
			t.Errorf("%d requests in 2 s", n)
		}
	})
}

// If the list cannot be read after a rejection, the first one that can be read is reported.
func TestRecheckOutlastsAFailedRequest(t *testing.T) {
	listing(t, vllmList, func(t *testing.T, p *Prober, e *engine, _ *reports, l *lists) {
		time.Sleep(200 * time.Millisecond)
		l.drain()
		before := e.count("/v1/models")
		e.set(func(e *engine) { e.status["/v1/models"] = 500 })
		p.Recheck("us-0")
		time.Sleep(500 * time.Millisecond)
		if got := l.drain(); len(got) != 0 || e.count("/v1/models") != before+1 {
			t.Errorf("got %+v after %d requests", got, e.count("/v1/models")-before)
		}
		e.set(func(e *engine) { delete(e.status, "/v1/models") })
		time.Sleep(time.Second)
		if got := l.drain(); len(got) != 1 || e.count("/v1/models") != before+2 {
			t.Errorf("got %+v after %d requests", got, e.count("/v1/models")-before)
		}
	})
}

// An engine that does not list adapters is asked in the usual interval: its list cannot show that an adapter
// is missing.
func TestRecheckWithoutParents(t *testing.T) {
	listing(t, `{"data":[{"id":"llama"}]}`, func(t *testing.T, p *Prober, e *engine, _ *reports, l *lists) {
		l.drain()
		p.Recheck("us-0")
		time.Sleep(time.Second)
		if e.count("/v1/models") != 1 {
			t.Errorf("requested %d times", e.count("/v1/models"))
		}
		time.Sleep(2 * time.Second)
		if got := l.drain(); len(got) != 1 || got[0].Complete {
			t.Errorf("got %+v", got)
		}
	})
}

// A replica without a configured model serves the first listed name that is no adapter.
func TestAdapterIsNotTheModel(t *testing.T) {
	e := newEngine()
	e.pages["/v1/models"] = `{"data":[{"id":"sql","parent":"llama"},{"id":"llama","parent":null}]}`
	probing(t, service.ReplicaConfig{}, e, Options{}, func(t *testing.T, p *Prober, _ *reports) {
		time.Sleep(time.Second)
		if got := p.Status()[0].Replica.Model; got != "llama" {
			t.Errorf("model %q", got)
		}
	})
}

func FuzzParseModels(f *testing.F) {
	for _, page := range []string{vllmList, vllmNoLoRA, `{"data":[{}]}`, `{"data":null}`, `[]`, `{"data":[{"id":"a","parent":{}}]}`} {
		f.Add(page)
	}
	f.Fuzz(func(t *testing.T, page string) {
		models, err := parseModels([]byte(page))
		if err != nil || len(models) == 0 {
			return
		}
		name := defaultModel(models)
		l := newModelList(models, name)
		if len(l.Names) != len(models) || !slices.Contains(l.Names, name) || len(l.Adapters) > 0 && !l.Complete || l.MaxModelLen < 0 {
			t.Errorf("%s: %q, %+v", page, name, l)
		}
	})
}
