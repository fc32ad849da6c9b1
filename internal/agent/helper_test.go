package agent

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"skyserve/internal/identity"
	"skyserve/internal/testkit"
)

// TestMain runs the tests, or a unit's program: see unitMain.
func TestMain(m *testing.M) {
	if os.Getenv(envUnit) != "" {
		unitMain()
		return
	}
	goleak.VerifyTestMain(m)
}

// fakeRunner is a Runner that runs nothing and records its calls.
type fakeRunner struct {
	mu      sync.Mutex
	units   map[string]Unit
	lines   map[string][]string
	calls   []string
	failing error
}

func (n *fakeRunner) Names(context.Context) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.units)), nil
}

func (n *fakeRunner) Start(_ context.Context, u Unit, _ func(Progress)) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failing != nil {
		return false, n.failing
	}
	if old, there := n.units[u.Name]; there && old.immutableHash() == u.immutableHash() {
		return false, nil
	}
	if n.units == nil {
		n.units = map[string]Unit{}
	}
	n.units[u.Name] = u
	n.calls = append(n.calls, "start "+u.Name)
	return true, nil
}

func (n *fakeRunner) Reload(_ context.Context, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, "reload "+name)
	return nil
}

func (n *fakeRunner) Stop(_ context.Context, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.units, name)
	n.calls = append(n.calls, "stop "+name)
	return nil
}

func (n *fakeRunner) Inspect(_ context.Context, u Unit, lines int) (UnitState, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, running := n.units[u.Name]
	log := n.lines[u.Name]
	return UnitState{Running: running, Lines: log[max(0, len(log)-lines):]}, nil
}

func (n *fakeRunner) recordedCalls() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.calls)
}

// fakePublisher is a Publisher from which a test reads the fingerprint.
type fakePublisher struct {
	mu          sync.Mutex
	fingerprint string
}

func (b *fakePublisher) Publish(_ context.Context, _ identity.Name, fingerprint string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fingerprint = fingerprint
	return nil
}

func (b *fakePublisher) read(context.Context) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fingerprint == "" {
		return "", ErrNoFingerprint
	}
	return b.fingerprint, nil
}

// testService is a service with its CA.
type testService struct {
	t         *testing.T
	authority *identity.Authority
	home      identity.Home
}

func newTestService(t *testing.T) *testService {
	t.Helper()
	w := &testService{t: t, home: identity.Home{Dir: t.TempDir()}}
	var err error
	if w.authority, err = w.home.Create("chat", time.Now()); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *testService) operator() *Client {
	w.t.Helper()
	p, err := w.home.OperatorParty("ann", time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	return &Client{Party: p, Authority: w.authority}
}

// party returns another identity of the service.
func (w *testService) party(role identity.Role, id string) identity.Party {
	w.t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		w.t.Fatal(err)
	}
	chain, err := w.authority.Certify(key.Public(), identity.Name{Service: "chat", Role: role, ID: id}, time.Now(), time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	return identity.NewParty(chain, key)
}

// testMachine is a machine with a running agent.
type testMachine struct {
	Target
	agent     *Agent
	publisher *fakePublisher
	stop      func()
}

// boot starts the agent of the replica us-0 in a directory.
func (w *testService) boot(dir string, runner Runner, change ...func(*Options)) *testMachine {
	w.t.Helper()
	b := &testMachine{publisher: &fakePublisher{}}
	name := identity.Name{Service: "chat", Role: identity.Replica, ID: "us-0"}
	listening := make(chan string, 1)
	o := Options{
		Name: name, Owner: w.authority.Owner(), Dir: dir, Listen: "127.0.0.1:0", Publisher: b.publisher, Runner: runner,
		CheckInterval: 5 * time.Millisecond, OnListen: func(addr string) { listening <- addr },
	}
	for _, f := range change {
		f(&o)
	}
	var err error
	if b.agent, err = New(o); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.agent.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	w.t.Cleanup(b.stop)
	select {
	case addr := <-listening:
		b.Target = Target{Name: name, Address: addr, Fingerprint: b.publisher.read}
	case err := <-ended:
		ended <- err
		w.t.Fatal(err)
	}
	testkit.Eventually(w.t, "the fingerprint is published", func() bool {
		_, err := b.publisher.read(context.Background())
		return err == nil || b.agent.currentCredentials() != nil
	})
	return b
}

// envUnit makes this test binary the program of a unit; its value is the listen address.
const envUnit = "SKYSERVE_TEST_UNIT"

// unitMain responds to every request with the variable RESPONSE, and exits at /exit.
func unitMain() {
	err := http.ListenAndServe(os.Getenv(envUnit), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/exit":
			os.Exit(3)
		case "/pid":
			_, _ = w.Write([]byte(strconv.Itoa(os.Getpid())))
		default:
			_, _ = w.Write([]byte(os.Getenv("RESPONSE")))
		}
	}))
	if !errors.Is(err, http.ErrServerClosed) {
		os.Exit(1)
	}
}
