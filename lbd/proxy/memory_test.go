package proxy

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// twinSize returns the expected memory of a body after n bytes: a buffer of at least 4 KiB, with
// space for the declared length up to 64 KiB and 256 additional bytes. The buffer then doubles up to
// the declared length. Sizes are powers of two and quarter steps between them.
func twinSize(n, declared int) int64 {
	const spare = 256
	class := func(n int) int {
		for size := 1024; ; size *= 2 {
			for quarter := range 4 {
				if c := size + size/4*quarter; c >= n {
					return c
				}
			}
		}
	}
	size := class(max(4096, spare))
	if declared >= 0 {
		size = class(max(4096, min(declared, 65536)+spare))
	}
	for n >= size {
		if declared >= 0 {
			size = class(min(2*size, declared+spare))
		} else {
			size = class(size + size/4)
		}
	}
	return int64(size)
}

// upload is a request whose body arrives in pieces.
type upload struct {
	tenant   string
	body     string
	declared int // -1 = it is sent in chunks
	sent     int
	pipe     *io.PipeWriter
	cancel   context.CancelFunc
	answer   *httptest.ResponseRecorder
	ended    chan struct{}
}

// begin lets the runtime serve a body of n bytes that arrives in pieces.
func begin(rt *Runtime, tenant string, size int, chunked bool) *upload {
	const head, tail = `{"model":"` + testModel + `","messages":[],"pad":"`, `"}`
	pr, pw := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	u := &upload{tenant: tenant, body: head + strings.Repeat("x", size) + tail, declared: -1, pipe: pw, cancel: cancel, answer: httptest.NewRecorder(), ended: make(chan struct{})}
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, chatPath, pr)
	req.ContentLength = -1
	if !chunked {
		req.ContentLength, u.declared = int64(len(u.body)), len(u.body)
	}
	req.Header.Set("Authorization", "Bearer sk-"+tenant)
	go func() {
		defer close(u.ended)
		defer pr.Close()
		defer func() { _ = recover() }() // as in the server, for http.ErrAbortHandler
		rt.serveRequest(u.answer, req)
	}()
	return u
}

// done reports whether the request has ended.
func (u *upload) done() bool {
	select {
	case <-u.ended:
		return true
	default:
		return false
	}
}

// send sends n more bytes, or all remaining ones, and after the last byte the end of the body.
func (u *upload) send(n int) {
	end := min(u.sent+n, len(u.body))
	if _, err := u.pipe.Write([]byte(u.body[u.sent:end])); err != nil {
		return // the request was rejected
	}
	if u.sent = end; end == len(u.body) {
		_ = u.pipe.Close()
	}
}

// fullReplica returns a runtime with one replica without capacity, so that requests are queued, and a
// transport that responds at once.
func fullReplica(t *testing.T, limits Limits, tenants ...string) *Runtime {
	t.Helper()
	o := testOptions(t)
	o.Limits, o.Transport = limits, cannedEngine{"application/json", plainReply}
	for _, tenant := range tenants {
		o.Keys = append(o.Keys, service.APIKey{Secret: "sk-" + tenant, Name: tenant, Tenant: tenant})
	}
	rt, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rt.AddReplica(service.ReplicaConfig{ID: "us-0", URL: "http://engine", Model: testModel}); err != nil {
		t.Fatal(err)
	}
	return rt
}

// For all orders in which requests arrive, are queued, served and cancelled, the accounted memory
// is that of their bodies. A request that exceeds the limit is rejected, and no memory remains in
// use at the end.
func TestMemoryOfUploads(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			const total, share, limit = 1 << 20, 400 << 10, 300 << 10
			rt := fullReplica(t, Limits{Memory: total, TenantMemory: share, MaxBody: limit}, "a", "b", "c")
			random := rand.New(rand.NewPCG(seed, 0))
			var all []*upload
			sum := func(tenant string) (n int64) {
				for _, u := range all {
					if !u.done() && (tenant == "" || u.tenant == tenant) {
						n += twinSize(u.sent, u.declared)
					}
				}
				return n
			}
			// refused returns the status for more bytes; 0 = accepted.
			refused := func(tenant string, more int64) int {
				switch {
				case sum(tenant)+more > share:
					return http.StatusTooManyRequests
				case sum("")+more > total:
					return http.StatusServiceUnavailable
				}
				return 0
			}
			statuses := map[int]int{}
			wantEnd := func(u *upload, status int) {
				t.Helper()
				if !u.done() || u.answer.Code != status {
					t.Fatalf("seed %d: an upload of %d bytes, %d of them sent, ended %v with %d, want %d", seed, len(u.body), u.sent, u.done(), u.answer.Code, status)
				}
				if status >= 400 && u.answer.Header().Get("Retry-After") == "" {
					t.Fatalf("seed %d: %d without Retry-After", seed, status)
				}
				statuses[status]++
			}
			for range 120 {
				switch step := random.IntN(10); {
				case len(all) == 0 || step < 3:
					tenant, size, chunked := []string{"a", "b", "c"}[random.IntN(3)], random.IntN(limit-1000)>>random.IntN(8), random.IntN(4) == 0
					declared := len(begin0) + size
					first := twinSize(0, -1)
					if !chunked {
						first = max(twinSize(0, declared), int64(declared))
					}
					want := refused(tenant, first)
					u := begin(rt, tenant, size, chunked)
					synctest.Wait()
					if want != 0 {
						wantEnd(u, want)
						continue
					}
					all = append(all, u)
				case step < 8:
					u := all[random.IntN(len(all))]
					if u.done() || u.sent == len(u.body) {
						continue
					}
					n := min(1+random.IntN(len(u.body)), len(u.body)-u.sent)
					more := twinSize(u.sent+n, u.declared) - twinSize(u.sent, u.declared)
					want := 0
					if more > 0 {
						want = refused(u.tenant, more)
					}
					u.send(n)
					synctest.Wait()
					if want != 0 {
						wantEnd(u, want)
					}
				case step < 9:
					u := all[random.IntN(len(all))]
					u.cancel()
					_ = u.pipe.CloseWithError(io.ErrUnexpectedEOF)
				default: // the replica has capacity for a moment
					b := &balancer{Runtime: rt, t: t}
					b.report("us-0")
					synctest.Wait()
					b.full("us-0")
				}
				synctest.Wait()
				used, byTenant := rt.memory.Used(), fmt.Sprint(rt.memory.UsedBy("a"), rt.memory.UsedBy("b"), rt.memory.UsedBy("c"))
				if want := fmt.Sprint(sum("a"), sum("b"), sum("c")); used != sum("") || byTenant != want || used > total {
					t.Fatalf("seed %d: %d bytes are accounted for, by tenant %s, want %d and %s", seed, used, byTenant, sum(""), want)
				}
			}
			for _, u := range all {
				u.cancel()
				_ = u.pipe.CloseWithError(io.ErrUnexpectedEOF)
			}
			synctest.Wait()
			if rt.memory.Used()+rt.memory.UsedBy("a")+rt.memory.UsedBy("b")+rt.memory.UsedBy("c") != 0 {
				t.Fatalf("seed %d: %d bytes remain", seed, rt.memory.Used())
			}
			lawful(t, rt.View().Counts)
		})
	}
}

// begin0 is the text that begin adds around the requested bytes.
const begin0 = `{"model":"` + testModel + `","messages":[],"pad":""}`

// The heap is not much larger than the accounted memory, regardless of the number of sent bytes.
func TestHeapStaysWithinLimits(t *testing.T) {
	const total, body, clients = 16 << 20, 1 << 19, 80
	rt := fullReplica(t, Limits{Memory: total})
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // pools are emptied by the second call
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	text := `{"model":"` + testModel + `","messages":[],"pad":"` + strings.Repeat("x", body) + `"}`
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	answers := make(chan int, clients)
	for range clients {
		serving.Go(func() {
			w := httptest.NewRecorder()
			defer func() {
				_ = recover()
				answers <- w.Code
			}()
			rt.serveRequest(w, httptest.NewRequestWithContext(ctx, http.MethodPost, chatPath, strings.NewReader(text)))
		})
	}
	(&balancer{t: t}).until(func() bool { return len(answers)+rt.View().Counts.Queued == clients })
	for range len(answers) {
		if code := <-answers; code != http.StatusServiceUnavailable {
			t.Fatalf("status %d, want 503", code)
		}
	}
	if used := rt.memory.Used(); used > total || used < total/2 {
		t.Errorf("%d bytes are accounted for, want most of %d", used, total)
	}
	if grown := heap() - before; grown > 2*total {
		t.Errorf("the heap has grown by %d MiB, with %d MiB allowed", grown>>20, total>>20)
	}
	cancel()
	serving.Wait()
	if used := rt.memory.Used(); used != 0 {
		t.Errorf("%d bytes remain", used)
	}
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

func (unread) Close() error { return nil }

// No memory is allocated for a client that is not admitted: its body is not read.
func TestUnauthenticatedUploadsAreNotRead(t *testing.T) {
	rt := fullReplica(t, Limits{}, "a")
	for _, proto := range []int{1, 2} {
		for _, length := range []int64{100, 16 << 20, -1} {
			req := httptest.NewRequest(http.MethodPost, chatPath, unread{t})
			req.ContentLength, req.ProtoMajor = length, proto
			req.Header.Set("Authorization", "Bearer sk-nobody")
			w := httptest.NewRecorder()
			rt.serveRequest(w, req)
			if w.Code != http.StatusUnauthorized || rt.memory.Used() != 0 {
				t.Errorf("status %d with %d bytes taken, want 401 without any", w.Code, rt.memory.Used())
			}
		}
	}
}

// Over HTTP/2, the accounted memory of a body being received includes the connection's buffer.
func TestMemoryOfUploadsOverHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := fullReplica(t, Limits{StreamWindow: 100_000})
		for _, c := range []struct {
			declared int64
			window   int64
		}{{-1, 100_000}, {40_000, 40_000}, {400_000, 100_000}} {
			pr, pw := io.Pipe()
			ctx, cancel := context.WithCancel(context.Background())
			req := httptest.NewRequestWithContext(ctx, http.MethodPost, chatPath, pr)
			req.ContentLength, req.ProtoMajor = c.declared, 2
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				rt.serveRequest(httptest.NewRecorder(), req)
			}()
			synctest.Wait()
			if got, want := rt.memory.Used(), twinSize(0, int(c.declared))+c.window; got != want {
				t.Errorf("a body of %d bytes takes %d, want %d", c.declared, got, want)
			}
			_ = pw.CloseWithError(io.ErrUnexpectedEOF)
			<-ended
			cancel()
			if rt.memory.Used() != 0 {
				t.Errorf("%d bytes remain", rt.memory.Used())
			}
		}
		u := begin(rt, "", 5000, false)
		u.send(1 << 20)
		synctest.Wait()
		if got, want := rt.memory.Used(), twinSize(u.declared, u.declared); got != want {
			t.Errorf("a body that has come takes %d bytes, want %d", got, want)
		}
		u.cancel()
		<-u.ended
	})
}

// A peer without memory for a request bounces it, and receives no more requests for a while.
func TestPeerRequestWithoutMemoryIsBounced(t *testing.T) {
	o := roundRobin(t)
	o.Limits.Memory = 64 << 10
	o.Self.PeerToken = "secret"
	b := start(t, o)
	b.attach("us-0", engine(t, whole(plainReply)))
	resp := b.post(chatPath, padded(100<<10), "X-Skyserve-From: lb-eu-0", "X-Skyserve-Hop: remote", "X-Skyserve-Tenant: acme", "X-Skyserve-Peer-Token: secret")
	expect(t, resp, http.StatusServiceUnavailable, "memory")
	if resp.Header.Get(headerBounce) == "" {
		t.Error("the peer does not get it back")
	}
}

// A client whose connection ends with the response has sent its whole body before: otherwise it would see a
// broken connection instead of the response.
func TestRejectionWaitsForSmallBodies(t *testing.T) {
	rt := fullReplica(t, Limits{Memory: 64 << 10}, "a")
	for name, c := range map[string]struct {
		key, header string
		length      int
		unread      int
		status      int
	}{
		"without memory":             {"sk-a", "", 100 << 10, 0, http.StatusServiceUnavailable},
		"with an unknown key":        {"sk-b", "", 100 << 10, 0, http.StatusUnauthorized},
		"too large to wait for":      {"sk-b", "", 1 << 20, 1<<20 - 256<<10, http.StatusUnauthorized},
		"not sent without a request": {"sk-b", "100-continue", 100 << 10, 100 << 10, http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			body := strings.NewReader(padded(c.length)[:c.length])
			req := httptest.NewRequest(http.MethodPost, chatPath, body)
			req.Close = true
			req.Header.Set("Authorization", "Bearer "+c.key)
			if c.header != "" {
				req.Header.Set("Expect", c.header)
			}
			w := httptest.NewRecorder()
			rt.serveRequest(w, req)
			if w.Code != c.status || body.Len() != c.unread {
				t.Errorf("status %d with %d unread bytes, want %d with %d", w.Code, body.Len(), c.status, c.unread)
			}
			if w.Header().Get("Connection") == "close" {
				t.Error("the balancer ends the connection of a client that may keep it")
			}
		})
	}
}

// padded returns a body with n padding bytes.
func padded(n int) string {
	return strings.Replace(plainBody, "{", `{"pad":"`+strings.Repeat("x", n)+`",`, 1)
}

// A tenant that has used its share of a peer's memory does not block other tenants from that peer.
// Its own request is retried at other targets, and rejected if none accepts it.
func TestTenantMemoryLimitDoesNotBlockPeer(t *testing.T) {
	oUS, oEU := testOptions(t), testOptions(t)
	oUS.Keys = limited(t, "")
	oUS.Keys = append(oUS.Keys, apiKeys("sk-other")...)
	oUS.Core.PeerBackoff = time.Hour
	oUS.Self.PeerToken, oEU.Self.PeerToken = "secret", "secret"
	oEU.Self.ID, oEU.Self.Region = "lb-eu-0", "local/eu"
	oEU.Limits.TenantMemory = 64 << 10
	us, eu := start(t, oUS), start(t, oEU)
	eu.attach("eu-0", engine(t, whole(plainReply)))
	us.AddPeer(service.PeerConfig{ID: "lb-eu-0", Region: "local/eu", URL: eu.url}, nil)
	us.Step(core.Event{Kind: core.EventPeerReport, Target: "lb-eu-0", PeerReport: &core.PeerReport{Models: eu.ModelLoads()}})
	expect(t, us.post(chatPath, padded(100<<10), "Authorization: Bearer sk"), http.StatusTooManyRequests, "tenant_memory")
	expect(t, us.post(chatPath, plainBody, "Authorization: Bearer sk-other"), http.StatusOK, "")
	us.attach("us-0", engine(t, whole(plainReply)))
	expect(t, us.post(chatPath, padded(100<<10), "Authorization: Bearer sk"), http.StatusOK, "")
	lawful(t, us.settled())
}

// The text that a stream keeps for a continuation is accounted for. A stream without memory for its
// text is forwarded without a transcript.
func TestMemoryOfStreams(t *testing.T) {
	for name, c := range map[string]struct {
		limits Limits
		keeps  bool
	}{
		"enough":  {Limits{}, true},
		"too few": {Limits{Memory: 64 << 10}, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			o.Limits = c.limits
			b := start(t, o)
			const text = 100_000
			sent, finish := make(chan struct{}), make(chan struct{})
			b.attachAs("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				for range 100 {
					_, _ = io.WriteString(w, chunk(strings.Repeat("z", text/100)))
				}
				_, _ = io.WriteString(w, `data: {"part":"`+strings.Repeat("y", 50_000)) // part of an event
				_ = http.NewResponseController(w).Flush()
				close(sent)
				<-finish
				_, _ = io.WriteString(w, `"}`+"\n\n"+doneEvent)
			}), service.EngineVLLM)
			resp := b.post(chatPath, streamBody)
			<-sent
			if c.keeps {
				b.until(func() bool { return b.memory.Used() >= text+50_000 })
				if used := b.memory.Used(); used > 2*(text+50_000)+8<<10 {
					t.Errorf("%d bytes are accounted for", used)
				}
			} else if used := b.memory.Used(); used > 64<<10 {
				t.Errorf("%d bytes are accounted for, with %d allowed", used, 64<<10)
			}
			close(finish)
			got := read(t, resp)
			if n := strings.Count(got, "z"); n != text || strings.Count(got, "y") != 50_000 || !strings.HasSuffix(got, doneEvent) {
				t.Errorf("the client got %d of %d bytes of text", n, text)
			}
			b.settled()
			b.until(func() bool { return b.memory.Used() == 0 })
		})
	}
}

// A non-streamed response without memory to buffer it is forwarded as it arrives.
func TestResponsesPassWithoutBufferMemory(t *testing.T) {
	o := roundRobin(t)
	o.Limits.Memory = 16 << 10
	b := start(t, o)
	half, finish := make(chan struct{}), make(chan struct{})
	long := strings.Replace(plainReply, "hi there", strings.Repeat("x", 200_000), 1)
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, long[:100_000])
		_ = http.NewResponseController(w).Flush()
		close(half)
		<-finish
		_, _ = io.WriteString(w, long[100_000:])
	}))
	resp := b.post(chatPath, plainBody) // it returns once the response has started
	<-half
	if used := b.memory.Used(); used > 16<<10 {
		t.Errorf("%d bytes are accounted for, with %d allowed", used, 16<<10)
	}
	close(finish)
	if got := read(t, resp); got != long {
		t.Errorf("the client got %d of %d bytes", len(got), len(long))
	}
	b.settled()
	b.until(func() bool { return b.memory.Used() == 0 })
}
