package store

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(memberEnv); text != "" {
		os.Exit(runMember(text))
	}
	// Tests of clusters wait for elections: more of them than processors run at once.
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, testkit.NATSLeaks()...)
}

// serve runs a store on a free port in dir.
func serve(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := Serve(t.Context(), Options{Dir: dir, Listen: "127.0.0.1:0", Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func connect(t *testing.T, srv *Server, opts ...Option) *Store {
	t.Helper()
	s, err := Connect(t.Context(), srv.URL(), "secret", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestKeyValue(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	ctx := t.Context()
	if _, _, err := st.Get(ctx, "desired.a"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("Get of a missing key returned %v", err)
	}
	rev := must[uint64](t)(st.Create(ctx, "desired.a", []byte("1")))
	if _, err := st.Create(ctx, "desired.a", nil); !errors.Is(err, ErrConflict) {
		t.Fatalf("Create of an existing key returned %v", err)
	}
	next := must[uint64](t)(st.CompareAndSwap(ctx, "desired.a", []byte("2"), rev))
	if next <= rev {
		t.Fatalf("the revision did not increase: %d after %d", next, rev)
	}
	if _, err := st.CompareAndSwap(ctx, "desired.a", []byte("3"), rev); !errors.Is(err, ErrConflict) {
		t.Fatalf("CompareAndSwap with an old revision returned %v", err)
	}
	value, got, err := st.Get(ctx, "desired.a")
	if err != nil || string(value) != "2" || got != next {
		t.Fatalf("got %q at %d, %v; want 2 at %d", value, got, err, next)
	}
	must[uint64](t)(st.Put(ctx, "other.b", []byte("x")))
	must[uint64](t)(st.Put(ctx, "desired.b", []byte("x")))
	if keys := must[[]string](t)(st.Keys(ctx, "desired.")); strings.Join(keys, " ") != "desired.a desired.b" {
		t.Fatalf("keys: %v", keys)
	}
	if err := st.Delete(ctx, "desired.a"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := st.Get(ctx, "desired.a"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("Get of a deleted key returned %v", err)
	}
	if rev := must[uint64](t)(st.Create(ctx, "desired.a", []byte("4"))); rev <= next {
		t.Fatalf("revision %d was reused after a delete, the last was %d", rev, next)
	}
	if _, err := st.Put(ctx, "a key", nil); err == nil || !strings.Contains(err.Error(), `"a key"`) {
		t.Fatalf("the error of an invalid key must contain the key: %v", err)
	}
	if keys, err := connect(t, serve(t, t.TempDir())).Keys(ctx, ""); err != nil || len(keys) != 0 {
		t.Fatalf("keys of an empty store: %v, %v", keys, err)
	}
}

// Concurrent increments of several clients by compare-and-swap are all counted.
func TestCompareAndSwapRace(t *testing.T) {
	srv := serve(t, t.TempDir())
	const clients, each = 4, 10
	must[uint64](t)(connect(t, srv).Put(t.Context(), "n", []byte("0")))
	var wg sync.WaitGroup
	for range clients {
		st := connect(t, srv)
		wg.Go(func() {
			for done := 0; done < each; {
				value, rev, err := st.Get(t.Context(), "n")
				if err != nil {
					t.Error(err)
					return
				}
				var n int
				fmt.Sscan(string(value), &n)
				_, err = st.CompareAndSwap(t.Context(), "n", fmt.Append(nil, n+1), rev)
				if err == nil {
					done++
				} else if !errors.Is(err, ErrConflict) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	value, _, err := connect(t, srv).Get(t.Context(), "n")
	if err != nil || string(value) != fmt.Sprint(clients*each) {
		t.Fatalf("got %q, %v; want %d", value, err, clients*each)
	}
}

func next[T any](t *testing.T, ch <-chan T) (value T) {
	t.Helper()
	ok := false
	select {
	case value, ok = <-ch:
	case <-time.After(testkit.Timeout):
	}
	if !ok {
		t.Fatal("the watch ended early, or is silent")
	}
	return value
}

func TestWatch(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	must[uint64](t)(st.Put(t.Context(), "a.1", []byte("x")))
	must[uint64](t)(st.Put(t.Context(), "b.1", []byte("hidden")))
	ctx, cancel := context.WithCancel(t.Context())
	ch := st.Watch(ctx, "a.")
	if c := next(t, ch); c.Key != "a.1" || string(c.Value) != "x" {
		t.Fatalf("the current value is %+v", c)
	}
	must[uint64](t)(st.Put(t.Context(), "a.2", []byte("y")))
	if c := next(t, ch); c.Key != "a.2" || string(c.Value) != "y" || c.Deleted {
		t.Fatalf("change: %+v", c)
	}
	if err := st.Delete(t.Context(), "a.1"); err != nil {
		t.Fatal(err)
	}
	if c := next(t, ch); c.Key != "a.1" || !c.Deleted || c.Value != nil {
		t.Fatalf("delete: %+v", c)
	}
	cancel()
	for range ch { // closes
	}
}

// A read-only watch creates no bucket, and receives later writes.
func TestWatchReadOnlyCreatesNothing(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	url := serve(t, t.TempDir())
	reader, writer := connect(t, url), connect(t, url)
	ch := reader.WatchReadOnly(t.Context(), "a.")
	for range 3 {
		if _, err := reader.openExistingStateBucket(t.Context()); !errors.Is(err, jetstream.ErrBucketNotFound) {
			t.Fatalf("the bucket: %v", err)
		}
	}
	must[uint64](t)(writer.Put(t.Context(), "a.1", []byte("x")))
	if c := next(t, ch); c.Key != "a.1" || string(c.Value) != "x" {
		t.Errorf("got %+v", c)
	}
}

// A client that starts before the server and a client that is disconnected both connect later. The
// data survives a restart, and a watch sends the changes made during it.
func TestClientsReconnectAfterRestart(t *testing.T) {
	dir := t.TempDir()
	addr := testkit.FreeAddr()
	lazy, err := Connect(t.Context(), "nats://"+addr, "secret", Lazy())
	if err != nil {
		t.Fatal(err)
	}
	defer lazy.Close()
	if _, _, err := lazy.Get(t.Context(), "k"); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("Get without a server returned %v", err)
	}
	if err := lazy.AppendPoints(t.Context(), []telemetry.Point{{Minute: 1}}); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("AppendPoints without a server returned %v", err)
	}
	if _, err := Connect(t.Context(), "nats://"+addr, "secret"); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("Connect without a server returned %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes := lazy.Watch(ctx, "")
	start := func() *Server {
		srv, err := Serve(t.Context(), Options{Dir: dir, Listen: addr, Token: "secret"})
		if err != nil {
			t.Fatal(err)
		}
		return srv
	}
	srv := start()
	rev := must[uint64](t)(connect(t, srv).Put(t.Context(), "k", []byte("v")))
	if c := next(t, changes); c.Key != "k" || c.Revision != rev {
		t.Fatalf("the lazy client received %+v", c)
	}
	srv.Close()
	srv = start()
	defer srv.Close()
	second := connect(t, srv)
	value, got, err := second.Get(t.Context(), "k")
	if err != nil || string(value) != "v" || got != rev {
		t.Fatalf("after restart: %q at %d, %v; want v at %d", value, got, err, rev)
	}
	must[uint64](t)(second.CompareAndSwap(t.Context(), "k", []byte("w"), rev))
	if c := next(t, changes); string(c.Value) != "w" {
		t.Fatalf("after the restart the watch sent %+v", c)
	}
	if _, _, err := lazy.Get(t.Context(), "k"); err != nil {
		t.Fatalf("lazy client after restart: %v", err)
	}
}

func TestServeRejectsInvalidOptions(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	busy := t.TempDir()
	serve(t, busy)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"taken port":    {Options{Dir: t.TempDir(), Listen: taken.Addr().String()}, "address already in use"},
		"busy dir":      {Options{Dir: busy, Listen: "127.0.0.1:0"}, "stop any other store that uses it"},
		"file as dir":   {Options{Dir: file, Listen: "127.0.0.1:0"}, "creating directory"},
		"no dir":        {Options{Listen: "127.0.0.1:0"}, "a directory is required"},
		"open to all":   {Options{Dir: t.TempDir(), Listen: "0.0.0.0:0"}, "set a token or TLS"},
		"all by colon":  {Options{Dir: t.TempDir(), Listen: ":0"}, "set a token or TLS"},
		"bad port":      {Options{Dir: t.TempDir(), Listen: "127.0.0.1:http"}, `got "http"`},
		"bad address":   {Options{Dir: t.TempDir(), Listen: "127.0.0.1"}, "listen must be host:port"},
		"damaged store": {Options{Dir: damaged(t), Listen: "127.0.0.1:0"}, "_state is damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			srv, err := Serve(t.Context(), c.o)
			if err == nil {
				srv.Close()
				t.Fatal("started")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %q, want it to contain %q", err, c.want)
			}
		})
	}
}

// damaged creates a store and then overwrites the metadata of its state stream.
func damaged(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	srv, err := Serve(t.Context(), Options{Dir: dir, Listen: "127.0.0.1:0", Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	must[uint64](t)(connect(t, srv).Put(t.Context(), "k", []byte("v")))
	srv.Close()
	found, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams", "*_state", "meta.inf"))
	if err != nil || len(found) != 1 {
		t.Fatalf("find the stream: %v, %v", found, err)
	}
	if err := os.WriteFile(found[0], []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestConnectRejectsInvalidArguments(t *testing.T) {
	srv := serve(t, t.TempDir())
	if _, err := Connect(t.Context(), srv.URL(), "wrong"); err == nil || errors.Is(err, ErrUnavailable) {
		t.Fatalf("a wrong token was reported as an outage: %v", err)
	}
	if _, err := Connect(t.Context(), srv.URL(), "secret", ForService("a.b")); err == nil {
		t.Fatal("namespace a.b was accepted")
	}
	if _, err := Connect(t.Context(), "", ""); err == nil {
		t.Fatal("an empty URL was accepted")
	}
	for _, url := range []string{"nats://user:s3cret@127.0.0.1:1,nats://user:s3cret@127.0.0.1:2", "nats://user:s3%zzcret@host:1", "nats://user:s3cret@127.0.0.1:port"} {
		var log bytes.Buffer
		_, err := Connect(t.Context(), url, "", Logger(slog.New(slog.NewTextHandler(&log, nil))))
		if text := fmt.Sprint(err, &log); err == nil || strings.Contains(text, "s3") || strings.Contains(text, "cret") {
			t.Errorf("%s: %s", url, text)
		}
	}
}

func TestServicesAreIsolated(t *testing.T) {
	srv := serve(t, t.TempDir())
	a, b := connect(t, srv, ForService("a")), connect(t, srv, ForService("b"))
	must[uint64](t)(a.Put(t.Context(), "k", []byte("v")))
	if _, _, err := b.Get(t.Context(), "k"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("b reads the key of a: %v", err)
	}
}

// A store that is still starting is no warning. One that stays away is, once.
func TestStoreThatStartsLaterIsNoWarning(t *testing.T) {
	for after, want := range map[time.Duration]string{startGrace - time.Second: "", 10 * startGrace: "WARN"} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			s := &Store{servers: "nats://127.0.0.1:1", url: "nats://127.0.0.1:1", now: time.Now, log: slog.New(slog.NewTextHandler(&log, nil))}
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			s.dialLater(ctx, s.natsOptions("", config{}))
			if got := strings.Count(log.String(), "level=WARN"); got != len(want)/len("WARN") || s.Outage() == nil {
				t.Errorf("after %s: %d warnings, outage %v: %s", after, got, s.Outage(), &log)
			}
		})
	}
}

// A connection that is closed on purpose ends without an error.
func TestDisconnectedLogsCause(t *testing.T) {
	for cause, err := range map[string]error{nats.ErrDisconnected.Error(): nil, "EOF": io.EOF} {
		var log bytes.Buffer
		s := &Store{url: "nats://127.0.0.1:1", now: time.Now, log: slog.New(slog.NewTextHandler(&log, nil))}
		s.disconnected(err)
		if !strings.Contains(log.String(), cause) || strings.Contains(log.String(), "<nil>") {
			t.Errorf("the log lacks %s: %s", cause, &log)
		}
	}
}

func TestBackoff(t *testing.T) {
	last := time.Duration(0)
	for i := range 100 {
		d := backoff(i)
		if d < last || d < reconnectMin || d > reconnectMax {
			t.Fatalf("attempt %d waits %s after %s", i, d, last)
		}
		last = d
	}
	if last != reconnectMax {
		t.Fatalf("the backoff ends at %s", last)
	}
}

func TestLoggerKeepsFirstFatal(t *testing.T) {
	l := newLogger(nil)
	l.Fatalf("one %d", 1)
	l.Fatalf("two")
	if err := l.firstFatal(); err == nil || err.Error() != "one 1" {
		t.Fatal(err)
	}
}

func TestContextEndsServer(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	srv, err := Serve(ctx, Options{Dir: dir, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-srv.done
	srv.Close() // returns once the directory is unlocked
	again, err := Serve(t.Context(), Options{Dir: dir, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatalf("the directory is still locked: %v", err)
	}
	again.Close()
}

func point(minute int64, balancer string, tokens int64) telemetry.Point {
	return telemetry.Point{Minute: minute, Balancer: balancer, Region: "local/us", Model: "m", Tier: "IW-F", PromptTokens: tokens}
}

func TestPoints(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	ctx := t.Context()
	const day = 29_000_000 / minutesPerDay * minutesPerDay
	batches := [][]telemetry.Point{
		{point(day+1, "lb-1", 10), point(day+1, "lb-0", 5), point(day-1, "lb-0", 7)},
		{point(day+1, "lb-1", 12)}, // appended again after a retry: the later one replaces it
		{point(day+2, "lb-0", 1)},
	}
	for _, b := range batches {
		if err := st.AppendPoints(ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	read := func(since int64) string {
		var out bytes.Buffer
		err := st.ReadPoints(ctx, since, func(p telemetry.Point) error {
			fmt.Fprintf(&out, "%d/%s/%d ", p.Minute-day, p.Balancer, p.PromptTokens)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for since, want := range map[int64]string{
		0:       "-1/lb-0/7 1/lb-0/5 1/lb-1/12 2/lb-0/1 ",
		day:     "1/lb-0/5 1/lb-1/12 2/lb-0/1 ",
		day + 2: "2/lb-0/1 ",
		day + 3: "",
	} {
		if got := read(since); got != want {
			t.Errorf("since %d: got %q, want %q", since-day, got, want)
		}
	}
	stop := errors.New("enough")
	if err := st.ReadPoints(ctx, 0, func(telemetry.Point) error { return stop }); err != stop {
		t.Fatalf("ReadPoints returned %v, want the error of yield", err)
	}
}

// A batch larger than one message is stored completely.
func TestLargeBatchesAreStored(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	var points []telemetry.Point
	for i := range int64(3*pointsPerMessage + 7) {
		points = append(points, point(i, "lb-0", i))
	}
	if err := st.AppendPoints(t.Context(), points); err != nil {
		t.Fatal(err)
	}
	i := int64(0)
	err := st.ReadPoints(t.Context(), 0, func(p telemetry.Point) error {
		if p != points[i] {
			return fmt.Errorf("point %d: got %+v", i, p)
		}
		i++
		return nil
	})
	if err != nil || int(i) != len(points) {
		t.Fatalf("%d of %d points, %v", i, len(points), err)
	}
}

// Points are decoded as they were encoded, regardless of the characters in names.
func TestPointsEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.Int64Min(0)
		points := rapid.SliceOf(rapid.Custom(func(t *rapid.T) telemetry.Point {
			name := rapid.StringMatching(`[ -~é"\n,]*`)
			return telemetry.Point{
				Minute: count.Draw(t, "minute"), Balancer: name.Draw(t, "balancer"), Region: service.Region(name.Draw(t, "region")),
				Model: name.Draw(t, "model"), Tier: service.Tier(name.Draw(t, "tier")), Requests: count.Draw(t, "requests"),
				PromptTokens: count.Draw(t, "prompt"), CachedTokens: count.Draw(t, "cached"), OutputTokens: count.Draw(t, "output"),
			}
		})).Draw(t, "points")
		got, err := decodePoints(encodePoints(points))
		if err != nil || !slices.Equal(got, points) {
			t.Fatalf("%v was decoded as %v, %v", points, got, err)
		}
	})
	for _, bad := range []string{"1,2\n", "x,b,r,m,t,1,2,3,4\n"} {
		if _, err := decodePoints([]byte(bad)); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}
