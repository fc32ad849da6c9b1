package probe

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// wholeAnswer is an engine's complete response to a request for a page.
func wholeAnswer(page []byte) []byte {
	return append([]byte("HTTP/1.1 200 OK\r\nServer: uvicorn\r\nContent-Type: text/plain\r\nContent-Length: "+strconv.Itoa(len(page))+"\r\n\r\n"), page...)
}

var (
	modelList  = wholeAnswer([]byte(`{"object":"list","data":[{"id":"m","object":"model"}]}`))
	loadAnswer = wholeAnswer([]byte(liveLoads))
)

// answerEach responds to each request of a connection: to /v1/models with the model m, to /v1/loads
// with liveLoads, and to all others with the same bytes. It does not allocate.
func answerEach(nc net.Conn, metrics []byte) {
	defer nc.Close()
	for in := bufio.NewReaderSize(nc, 1<<10); ; {
		answer := metrics
		for line := []byte(nil); string(line) != "\r\n"; {
			var err error
			if line, err = in.ReadSlice('\n'); err != nil {
				return
			}
			if bytes.HasPrefix(line, []byte("GET /v1/models ")) {
				answer = modelList
			}
			if bytes.HasPrefix(line, []byte("GET /v1/loads?")) {
				answer = loadAnswer
			}
		}
		if _, err := nc.Write(answer); err != nil {
			return
		}
	}
}

// probed returns a watch of a vLLM engine in this process that has a page of a size.
func probed(tb testing.TB, size int) *watch { return probedPage(tb, vllmPage(size)) }

// probedPage returns a watch of an engine in this process that has a page.
func probedPage(tb testing.TB, page []byte) *watch {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	metrics := wholeAnswer(page)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { answerEach(nc, metrics) })
		}
	})
	p := New(Options{Sink: func(core.Event) {}})
	cfg := service.ReplicaConfig{ID: "r", URL: "http://" + l.Addr().String(), Model: "m", Kind: service.EngineVLLM}
	w := &watch{prober: p, config: cfg, jitter: rand.New(rand.NewPCG(1, 1))}
	w.prepare()
	tb.Cleanup(func() {
		w.source.close()
		p.Close()
		l.Close()
		serving.Wait()
	})
	return w
}

// probeOnce probes once and fails unless the engine reported its figures.
func probeOnce(ctx context.Context, tb testing.TB, w *watch) {
	w.probe(ctx)
	w.source.release()
	if !w.status.Ready || w.report.Pending != known(2) {
		tb.Fatalf("got %+v, %+v", w.status, w.report)
	}
}

func TestProbeAllocatesNothing(t *testing.T) {
	w := probed(t, 60<<10)
	n := testing.AllocsPerRun(200, func() { probeOnce(t.Context(), t, w) })
	if n >= 1 { // pools may be emptied, and the hit rate's window grows
		t.Errorf("%v allocations a probe, want none", n)
	}
}

// Load endpoints are read over a real connection as the page is, and without allocating.
func TestProbeOfLoadsAllocatesNothing(t *testing.T) {
	w := probedPage(t, []byte(sglangPage+"100\n"))
	n := testing.AllocsPerRun(200, func() {
		w.probe(t.Context())
		w.source.release()
		if !w.status.Ready || w.report.Pending != known(3) || w.report.MetricsAge != 0 {
			t.Fatalf("got %+v, %+v", w.status, w.report)
		}
	})
	if n >= 1 {
		t.Errorf("%v allocations a probe, want none", n)
	}
}

func TestOversizedPage(t *testing.T) {
	w := probed(t, maxPage+1)
	for range 2 {
		w.probe(t.Context())
		if !w.status.Ready || w.report.Pending.Known {
			t.Fatalf("got %+v, %+v, want a replica of which nothing is known", w.status, w.report)
		}
	}
}

// BenchmarkProbe measures one probe of an engine over a socket, including the engine's own work.
func BenchmarkProbe(b *testing.B) {
	for _, size := range []int{300, 30 << 10, 60 << 10} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			w := probed(b, size)
			b.ReportAllocs()
			for b.Loop() {
				probeOnce(b.Context(), b, w)
			}
		})
	}
}
