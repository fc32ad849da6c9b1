package probe

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// BenchmarkProbe is one probe of an engine at the other end of a socket, its own
// share of the work included: a page of 4 KB that is written as it was made.
func BenchmarkProbe(b *testing.B) {
	page := vllmPage(4 << 10)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(page) })}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = srv.Serve(ln) }()
	defer srv.Close()
	p := New(Options{Sink: func(core.Event) {}})
	defer p.Close()
	cfg := service.ReplicaConfig{ID: "r", URL: "http://" + ln.Addr().String(), Kind: service.EngineVLLM}
	w := &watch{
		prober: p, asked: cfg, verified: true, kind: service.EngineVLLM, source: newSource(cfg.URL, p.opts), ranks: make([]Figures, 1),
	}
	defer w.source.close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.look(context.Background()); err != nil && err != io.EOF {
			b.Fatal(err)
		}
	}
}
