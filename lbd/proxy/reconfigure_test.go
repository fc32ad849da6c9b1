package proxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

// withPolicy returns a configuration with another policy and push mode.
func withPolicy(t *testing.T, cfg core.Config, name, push string) core.Config {
	t.Helper()
	var err error
	if cfg.Policy, err = policy.New(name); err != nil {
		t.Fatal(err)
	}
	if cfg.Push, err = core.ParsePush(push); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// A stream continues while the configuration changes, a queued request is sent if the new one allows
// it, and the record replays everything.
func TestReconfigureDuringRequests(t *testing.T) {
	var log bytes.Buffer
	o := testOptions(t)
	o.Record = &log
	o.Core.Push = core.PushMode{Kind: core.PushOutstanding, N: 1}
	rt, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	rt.Start(ctx)
	b := serveWith(t, rt)
	begun, finish := make(chan struct{}, 2), make(chan struct{})
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chunk("a"))
		_ = http.NewResponseController(w).Flush()
		begun <- struct{}{}
		<-finish
		_, _ = io.WriteString(w, doneEvent)
	}))
	first := b.post(chatPath, streamBody)
	<-begun
	second := make(chan string, 1)
	go func() { second <- read(t, b.post(chatPath, streamBody)) }()
	b.until(func() bool { return b.View().Counts.Queued == 1 })

	if !b.Reconfigure(withPolicy(t, o.Core, "least-load", "outstanding:2")) {
		t.Error("a new push mode changed nothing")
	}
	<-begun // the queued request is at the engine
	if b.Reconfigure(withPolicy(t, o.Core, "least-load", "outstanding:2")) {
		t.Error("the same configuration again changed something")
	}
	close(finish)
	for _, got := range []string{read(t, first), <-second} {
		if got != chunk("a")+doneEvent {
			t.Errorf("got %q", got)
		}
	}
	c := b.settled()
	lawful(t, c)
	if c.Finished != 2 {
		t.Errorf("counts %+v, want two finished", c)
	}
	stop()
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	replays(t, log.Bytes())
	h, lines := readRecord(t, bytes.NewReader(log.Bytes()))
	changes := 0
	for _, l := range lines {
		if l.Config != nil {
			changes++
			if l.Config.Policy != "least-load" || l.Config.Push != "outstanding:2" || len(l.Actions) != 1 {
				t.Errorf("recorded %+v with %d actions", l.Config, len(l.Actions))
			}
		}
	}
	if changes != 1 || h.Config.Policy != "skylb" || h.Record != record.Version {
		t.Errorf("%d changes recorded behind the header %+v", changes, h)
	}
}

// Keys are replaced at once: a stream of a removed key continues, but its client is not admitted
// again. A client's key never reaches an engine, even if all keys were removed before the request
// is sent.
func TestKeysReplacedDuringStream(t *testing.T) {
	o := testOptions(t)
	o.Keys = apiKeys("old")
	b := start(t, o)
	begun, finish, seen := make(chan struct{}, 1), make(chan struct{}), make(chan string, 2)
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		seen <- req.Header.Get("Authorization")
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chunk("a"))
		_ = http.NewResponseController(w).Flush()
		begun <- struct{}{}
		<-finish
		_, _ = io.WriteString(w, doneEvent)
	}))
	stream := b.post(chatPath, streamBody, "Authorization: Bearer old")
	<-begun
	b.SetKeys(apiKeys("new"))
	expect(t, b.post(chatPath, streamBody, "Authorization: Bearer old"), http.StatusUnauthorized, "invalid_api_key")
	if code, _ := b.get("/v1/models", "Authorization: Bearer new"); code != http.StatusOK {
		t.Errorf("the new key: %d", code)
	}
	close(finish)
	if got := read(t, stream); got != chunk("a")+doneEvent {
		t.Errorf("the stream got %q", got)
	}
	expect(t, b.post(chatPath, streamBody, "Authorization: Bearer new"), http.StatusOK, "")
	for range 2 {
		if got := <-seen; strings.Contains(got, "Bearer") {
			t.Errorf("an engine was shown %q", got)
		}
	}
}
