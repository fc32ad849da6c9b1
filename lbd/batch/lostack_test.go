package batch

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/internal/store"
	"skyserve/lbd/batch/job"
)

// lossyProxy forwards one connection to a store, and loses the answer to the first write of a key that contains lost.
type lossyProxy struct {
	mu    sync.Mutex
	lost  string // empty = nothing more is lost
	holds bool   // the next answer is lost
	// onLoss is called after the write was applied, instead of its answer.
	onLoss func()
}

// loseAnswer loses the answer to the next write of a key that contains part.
func (p *lossyProxy) loseAnswer(part string, onLoss func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost, p.onLoss = part, onLoss
}

// forward copies what filter passes on.
func forward(to io.Writer, from io.Reader, filter func([]byte) bool) {
	buf := make([]byte, 1<<20)
	for {
		n, err := from.Read(buf)
		if n > 0 && filter(buf[:n]) {
			_, err = to.Write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

func (p *lossyProxy) sees(request []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != "" && bytes.Contains(request, []byte("PUB $KV.")) && bytes.Contains(request, []byte(p.lost)) {
		p.lost, p.holds = "", true
	}
	return true
}

func (p *lossyProxy) passes([]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holds {
		p.holds = false
		p.onLoss()
		return false
	}
	return true
}

// startLossyNode is startNode without a worker, behind a proxy.
func startLossyNode(t *testing.T, srv *store.Server) (*node, *lossyProxy) {
	t.Helper()
	u, err := url.Parse(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, target := &lossyProxy{}, u.Host
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				return
			}
			conns.Go(func() { forward(out, in, p.sees); out.Close() })
			conns.Go(func() { forward(in, out, p.passes); in.Close() })
		}
	})
	t.Cleanup(func() { l.Close(); conns.Wait() })
	u.Host = l.Addr().String()
	st, err := store.Connect(t.Context(), u.String(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	s := New(Options{Store: st, Balancer: "lb"})
	return &node{Service: s, t: t, store: st}, p
}

// objects returns the names of all objects.
func (n *node) objects() (names []string) {
	n.t.Helper()
	err := n.store.SweepObjects(n.t.Context(), time.Hour, func(all []string) ([]string, error) { names = all; return nil, nil })
	if err != nil {
		n.t.Fatal(err)
	}
	return names
}

// A large result whose acknowledgement is lost keeps its content, and an attempt to record it again leaves nothing else
// behind.
func TestUnacknowledgedResultKeepsItsContent(t *testing.T) {
	n, p := startLossyNode(t, serveStore(t))
	r := job.New("batch_1", job.Params{Endpoint: "/v1/completions"}, time.Hour, "", "", time.Now())
	record := func(ctx context.Context) error {
		x := &execution{w: n.worker, batch: &r}
		return x.recordResult(ctx, 0, &job.Output{ID: "1", CustomID: "a", Response: &job.Response{
			StatusCode: http.StatusOK, Body: []byte(`"` + strings.Repeat("x", store.MaxBucketValue) + `"`),
		}})
	}
	if _, err := n.results.Keys(t.Context(), ""); err != nil { // creates the bucket
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p.loseAnswer("batch_1.0.0", cancel)
	if err := record(ctx); err == nil {
		t.Fatal("the acknowledgement was not lost")
	}
	for range 2 {
		results, err := n.chunkResults(t.Context(), "batch_1", 0)
		if err != nil || len(results) != 1 {
			t.Fatalf("%v, %v", results, err)
		}
		line, err := io.ReadAll(n.store.ReadObject(t.Context(), results[0].Object, 0, results[0].Size))
		if objects := n.objects(); err != nil || len(line) <= store.MaxBucketValue || len(objects) != 1 {
			t.Errorf("%d bytes, %v; objects: %v", len(line), err, objects)
		}
		if err := record(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A file whose record was stored without an acknowledgement keeps its content.
func TestUnacknowledgedUploadKeepsItsContent(t *testing.T) {
	n, p := startLossyNode(t, serveStore(t))
	n.mustUpload(Caller{}, line("a", "x")) // creates the bucket
	ctx, cancel := context.WithCancel(t.Context())
	p.loseAnswer("file.", cancel)
	n.uploadUntil(ctx, Caller{}, line("a", "y"), "purpose", "batch")
	if ctx.Err() == nil {
		t.Fatal("the acknowledgement was not lost")
	}
	var files struct{ Data []job.File }
	if n.get(Caller{}, "GET", PathFiles, &files); len(files.Data) != 2 {
		t.Fatalf("the files are %+v", files.Data)
	}
	for _, f := range files.Data {
		content, err := io.ReadAll(n.store.ReadObject(t.Context(), f.ID, 0, f.Bytes))
		if err != nil || len(content) == 0 {
			t.Errorf("%s: %q, %v", f.ID, content, err)
		}
	}
}
