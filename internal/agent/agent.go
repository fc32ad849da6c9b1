package agent

import (
	"cmp"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"skyserve/internal/identity"
)

// Names of the files in the agent's directory. Units read them by these names.
const (
	FileKey        = "node.key"
	FileCert       = "node.crt" // the chain; it is there once the machine is enrolled
	FileCA         = "ca.crt"
	FileRevoked    = "revoked.crl" // certificates that count no more; missing until there is one
	fileDeployment = "deployment.json"

	dirMode = 0o700
)

// Defaults, each with its reason.
const (
	defaultLook    = 2 * time.Second  // what a person who watches `up` takes for at once
	publishEvery   = time.Minute      // consoles keep the last 64 KiB, and a boot writes much
	publishAgain   = 24 * time.Hour   // after the enrolment: consoles go on to be written
	noticeEvery    = 5 * time.Second  // as AWS advises; it says so two minutes before, GCP 30 s
	headerTimeout  = 10 * time.Second // a header is one packet
	requestTimeout = 30 * time.Second // a deployment over a slow line
	closeTimeout   = 10 * time.Second // of what is in flight when the agent ends
)

// Options are what an agent needs.
type Options struct {
	// Name is who the machine is to be, and Owner the fingerprint of its service's
	// authority: it obeys nobody else's operators.
	Name  identity.Name
	Owner string
	// Dir is where it keeps its key and what was handed over.
	Dir string
	// Listen is where operators and the controller reach it, host:port.
	Listen string
	// Publisher tells the fingerprint of the machine's key; Runner runs units.
	Publisher Publisher
	Runner    Runner
	// Notice asks the cloud whether it will take the machine; nil = it never does.
	Notice Notice
	// Cloud makes what acts in the machine's cloud for the controller, as a handler of POST
	// with the value "call" of its path; nil = nothing does.
	Cloud func(Cloud) (http.Handler, error)
	// Advice asks the cloud whether it recommends to leave the machine; nil = it never does.
	Advice Advice
	// Look is the time between two looks at the units; default 2 s.
	Look time.Duration
	// Now tells the time that certificates must be good at; nil = time.Now.
	Now func() time.Time
	// Logger receives what happens, without secrets; nil = silence.
	Logger *slog.Logger
	// Listening is told the address once operators can come.
	Listening func(addr string)
}

// Agent is the agent of one machine.
type Agent struct {
	opts Options
	log  *slog.Logger
	key  crypto.Signer
	self *tls.Certificate // what it shows until it is enrolled
	api  http.Handler

	handover sync.Mutex    // lets one change by an operator run at a time
	acting   acting        // in the machine's cloud
	changed  chan struct{} // wanted is another; holds one

	mu        sync.Mutex
	party     *identity.Party // nil until it is enrolled
	expires   time.Time
	issuer    string // see Status.Issuer
	revoked   identity.Revoked
	wanted    Deployment
	stale     []string // paths of files of earlier deployments
	phase     Phase
	reason    string
	units     []UnitStatus
	draining  string      // why; empty = it is not
	goneAt    time.Time   // when the cloud takes the machine; zero = it does not
	lastCall  *time.Timer // drains before; nil until there is anything to drain for
	advisedAt time.Time   // since when it recommends to leave the machine; zero = it does not
	front     *front      // nil without one
}

// New opens what the machine has, and makes its key at the first boot. It is an error
// if the machine was enrolled by the authority of another service.
func New(opts Options) (*Agent, error) {
	opts.Look = cmp.Or(opts.Look, defaultLook)
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if err := opts.Name.Check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(opts.Dir, dirMode); err != nil {
		return nil, fmt.Errorf("starting the agent: %w", err)
	}
	a := &Agent{opts: opts, log: opts.Logger, phase: PhaseWaiting, changed: make(chan struct{}, 1)}
	var err error
	if a.key, err = ownKey(a.path(FileKey)); err != nil {
		return nil, err
	}
	if a.self, err = identity.SelfSigned(a.key, opts.Name.ID, opts.Now()); err != nil {
		return nil, err
	}
	if err := a.restore(); err != nil {
		return nil, err
	}
	a.api = a.routes()
	return a, nil
}

// ownKey is the machine's key, made where there is none.
func ownKey(path string) (crypto.Signer, error) {
	key, err := identity.ReadKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	made, err := identity.NewKey()
	if err != nil {
		return nil, fmt.Errorf("making the machine's key: %w", err)
	}
	text, err := identity.EncodeKey(made)
	if err != nil {
		return nil, err
	}
	return made, identity.WriteFile(path, text)
}

func (a *Agent) path(name string) string { return filepath.Join(a.opts.Dir, name) }

// Fingerprint is that of the machine's key.
func (a *Agent) Fingerprint() string { return identity.KeyFingerprint(a.self.Leaf) }

// restore takes up what was handed over before the machine was started again.
func (a *Agent) restore() error {
	text, err := os.ReadFile(a.path(FileCert))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var chain []*x509.Certificate
	if err == nil {
		chain, err = identity.ParseChain(text)
	}
	var party *identity.Party
	if err == nil {
		party, err = a.partyOf(chain)
	}
	if err == nil {
		a.revoked, err = identity.ReadRevoked(a.path(FileRevoked), party.Root)
	}
	if err == nil {
		text, err = os.ReadFile(a.path(fileDeployment))
	}
	if err == nil {
		err = json.Unmarshal(text, &a.wanted)
	}
	if err != nil {
		return fmt.Errorf("taking up the enrolment in %s: %w", a.opts.Dir, err)
	}
	a.party, a.expires, a.issuer = party, chain[0].NotAfter, issuerOf(chain)
	a.carryOut()
	return nil
}

// carryOut has what is wanted carried out.
func (a *Agent) carryOut() {
	select {
	case a.changed <- struct{}{}:
	default: // whoever carries it out has not looked yet
	}
}

// partyOf is the machine with a chain as its identity, after it was made sure that the
// chain is for this machine and by its service's authority.
func (a *Agent) partyOf(chain []*x509.Certificate) (*identity.Party, error) {
	if owner := identity.Fingerprint(chain[len(chain)-1]); owner != a.opts.Owner {
		return nil, fmt.Errorf("%w: the authority of the certificate is %s, and this machine's is %s", identity.ErrStranger, owner, a.opts.Owner)
	}
	name, err := identity.NameOf(chain[0])
	switch {
	case err != nil:
		return nil, err
	case name != a.opts.Name:
		return nil, fmt.Errorf("the certificate is for %s, and this is %s", name, a.opts.Name)
	case identity.KeyFingerprint(chain[0]) != a.Fingerprint():
		return nil, fmt.Errorf("the certificate is not for the key of %s", a.opts.Name)
	}
	party := identity.NewParty(chain, a.key)
	party.Revoked, party.Now = a.hasRevoked, a.opts.Now
	return &party, nil
}

// issuerOf is the serial number of the delegated authority in a chain; empty where there is
// none.
func issuerOf(chain []*x509.Certificate) string {
	if len(chain) < 3 {
		return ""
	}
	return chain[1].SerialNumber.Text(16)
}

// Run serves operators and keeps the units running until ctx ends. What it started
// runs on where the runner says so.
func (a *Agent) Run(ctx context.Context) error {
	ln, err := net.Listen("tcp", a.opts.Listen)
	if err != nil {
		return fmt.Errorf("starting the agent: %w", err)
	}
	server := &http.Server{
		Handler: a.api, ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout,
		ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server.BaseContext = func(net.Listener) context.Context { return ctx } // relayed connections end with the agent
	var running sync.WaitGroup
	running.Go(func() { a.publish(ctx) })
	running.Go(func() { a.keepUnits(ctx) })
	if a.opts.Notice != nil {
		running.Go(func() { a.watchNotices(ctx) })
	}
	if a.opts.Advice != nil {
		running.Go(func() { a.watchAdvice(ctx) })
	}
	running.Go(func() {
		<-ctx.Done()
		_ = server.Close() // operators ask again
	})
	if a.opts.Listening != nil {
		a.opts.Listening(ln.Addr().String())
	}
	err = server.Serve(tls.NewListener(ln, a.config()))
	cancel()
	running.Wait()
	a.closeFront()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving operators: %w", err)
}

// publish tells the key's fingerprint, often until the machine is enrolled and then so
// that it is found again: by it the certificate of a machine can be renewed that ended.
func (a *Agent) publish(ctx context.Context) {
	var last time.Time
	a.every(ctx, publishEvery, func() (done bool) {
		if a.enrolled() != nil && !last.IsZero() && time.Since(last) < publishAgain {
			return false
		}
		last = time.Now()
		if err := a.opts.Publisher.Publish(ctx, a.opts.Name, a.Fingerprint()); err != nil && ctx.Err() == nil {
			a.log.Error("publishing the fingerprint of this machine's key", "err", err)
		}
		return false
	})
}

// every calls do at once and then at an interval, until it is done or ctx ends.
func (a *Agent) every(ctx context.Context, interval time.Duration, do func() (done bool)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for !do() {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// enrolled is who the machine is; nil until it is anybody.
func (a *Agent) enrolled() *identity.Party {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.party
}
