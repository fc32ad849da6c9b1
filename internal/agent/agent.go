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
	"skyserve/internal/telemetry"
)

// Files in the agent's directory. Units read them by these names.
const (
	FileKey        = "node.key"
	FileCert       = "node.crt" // the chain; exists once the machine is enrolled
	FileCA         = "ca.crt"
	FileRevoked    = "revoked.crl" // revocation list; missing until there is one
	fileDeployment = "deployment.json"

	dirMode = 0o700
)

// Defaults, with their reasons.
const (
	defaultCheckInterval = 2 * time.Second  // immediate for an operator who watches `up`
	publishInterval      = time.Minute      // a console keeps its last 64 KiB, and boot messages can fill them
	republishInterval    = 24 * time.Hour   // after the enrolment, since other messages keep filling the console
	noticeInterval       = 2 * time.Second  // AWS recommends 5 s at most; a notice arrives 2 min ahead on AWS, 30 s on GCP
	headerTimeout        = 10 * time.Second // a request header fits one packet
	requestTimeout       = 30 * time.Second // a deployment over a slow line
	closeTimeout         = 10 * time.Second // for requests in flight through the engine proxy when it is closed
)

// Options are the options of an agent.
type Options struct {
	// Name is the machine's name. Owner is the fingerprint of its service's CA: the agent rejects
	// operators of other services.
	Name  identity.Name
	Owner string
	// Dir is the directory of its key and the delivered files.
	Dir string
	// Listen is the address, host:port, for operators and the controller.
	Listen string
	// Publisher publishes the fingerprint of the machine's key. Runner runs units.
	Publisher Publisher
	Runner    Runner
	// PollInterruption polls the cloud for an interruption of the machine; nil = never.
	PollInterruption InterruptionPoller
	// CloudHandler returns the HTTP handler through which the controller calls the API of the machine's cloud; nil =
	// none. The path value "call" names the call.
	CloudHandler func(CloudAccess) (http.Handler, error)
	// PollRebalance polls the cloud for a rebalance recommendation; nil = never.
	PollRebalance RebalancePoller
	// GPUs watches the machine's GPUs for fatal errors; nil = they are not watched.
	GPUs *GPUWatch
	// CheckInterval is the interval at which units are checked; default 2 s. ReadyCheckInterval is the interval
	// while all of them are ready; 0 = CheckInterval.
	CheckInterval, ReadyCheckInterval time.Duration
	// Now is the clock for certificates and starts; nil = time.Now.
	Now func() time.Time
	// Logger logs events, without secrets; nil = no logging.
	Logger *slog.Logger
	// OnListen is called with the address once the agent is listening.
	OnListen func(addr string)
}

// Agent is the agent of one machine.
type Agent struct {
	opts       Options
	log        *slog.Logger
	key        crypto.Signer
	selfSigned *tls.Certificate // its certificate until it is enrolled
	api        http.Handler

	changeMu     sync.Mutex    // serialises changes by operators
	cloudHandler cloudHandler  // calls the machine's cloud API
	changed      chan struct{} // signals that desired has changed; capacity 1

	mu             sync.Mutex
	credentials    *identity.Party // nil until it is enrolled
	expires        time.Time
	issuer         string // see Status.Issuer
	revoked        identity.Revoked
	desired        Deployment
	staleFiles     []string // paths of files of earlier deployments
	phase          Phase
	reason         string
	units          []UnitStatus
	starts         startState
	draining       string                 // the reason; empty = not draining
	interruptionAt time.Time              // when the cloud interrupts the machine; zero = not announced
	drainTimer     *time.Timer            // drains before the interruption; nil until one is announced
	rebalanceAt    time.Time              // time of the rebalance recommendation; zero = none
	gpuError       string                 // see Status.GPUError
	gpus           *int                   // see Status.GPUs
	gpuStats       []telemetry.GPUFigures // see Status.GPUStats
	version        string                 // see Status.Version
	versionRead    bool                   // the engine was asked for its version since its last start
	proxy          *engineProxy           // nil without one
}

// New loads the machine's state, and generates its key at the first boot. It returns an error if
// another service's CA enrolled the machine.
func New(opts Options) (*Agent, error) {
	opts.CheckInterval = cmp.Or(opts.CheckInterval, defaultCheckInterval)
	opts.ReadyCheckInterval = cmp.Or(opts.ReadyCheckInterval, opts.CheckInterval)
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
	a.starts.agentStartedAt = opts.Now()
	var err error
	if a.key, err = loadOrCreateKey(a.path(FileKey)); err != nil {
		return nil, err
	}
	if a.selfSigned, err = identity.SelfSigned(a.key, opts.Name.ID, opts.Now()); err != nil {
		return nil, err
	}
	if err := a.loadState(); err != nil {
		return nil, err
	}
	a.api = a.routes()
	return a, nil
}

// loadOrCreateKey returns the machine's key, and generates it if the file does not exist.
func loadOrCreateKey(path string) (crypto.Signer, error) {
	key, err := identity.ReadKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	made, err := identity.NewKey()
	if err != nil {
		return nil, fmt.Errorf("generating the machine's key: %w", err)
	}
	text, err := identity.EncodeKey(made)
	if err != nil {
		return nil, err
	}
	return made, identity.WriteFile(path, text)
}

func (a *Agent) path(name string) string { return filepath.Join(a.opts.Dir, name) }

// Fingerprint returns the fingerprint of the machine's key.
func (a *Agent) Fingerprint() string { return identity.KeyFingerprint(a.selfSigned.Leaf) }

// loadState loads the enrolment and deployment from before a restart.
func (a *Agent) loadState() error {
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
		party, err = a.credentialsFor(chain)
	}
	if err == nil {
		a.revoked, err = identity.ReadRevoked(a.path(FileRevoked), party.Root)
	}
	if err == nil {
		text, err = os.ReadFile(a.path(fileDeployment))
	}
	if err == nil {
		err = json.Unmarshal(text, &a.desired)
	}
	if err != nil {
		return fmt.Errorf("loading the enrolment in %s: %w", a.opts.Dir, err)
	}
	a.credentials, a.expires, a.issuer = party, chain[0].NotAfter, issuerOf(chain)
	a.starts.agentStartedAt = time.Time{} // it was enrolled before the agent restarted
	a.signalChange()
	return nil
}

// signalChange signals that the desired deployment should be applied.
func (a *Agent) signalChange() {
	select {
	case a.changed <- struct{}{}:
	default: // already signalled
	}
}

// credentialsFor returns the machine's identity with a chain, after verifying that the chain is for this
// machine and from its service's CA.
func (a *Agent) credentialsFor(chain []*x509.Certificate) (*identity.Party, error) {
	if owner := identity.Fingerprint(chain[len(chain)-1]); owner != a.opts.Owner {
		return nil, fmt.Errorf("%w: the certificate must be from the CA %s, got one from the CA %s", identity.ErrUntrusted, a.opts.Owner, owner)
	}
	name, err := identity.NameOf(chain[0])
	switch {
	case err != nil:
		return nil, err
	case name != a.opts.Name:
		return nil, fmt.Errorf("the certificate must be for %s, got one for %s", a.opts.Name, name)
	case identity.KeyFingerprint(chain[0]) != a.Fingerprint():
		return nil, fmt.Errorf("the certificate must be for the key of %s, got one for another key", a.opts.Name)
	}
	party := identity.NewParty(chain, a.key)
	party.Revoked, party.Now = a.hasRevoked, a.opts.Now
	return &party, nil
}

// issuerOf returns the serial number of the delegated CA in a chain; empty where there is none.
func issuerOf(chain []*x509.Certificate) string {
	if len(chain) < 3 {
		return ""
	}
	return chain[1].SerialNumber.Text(16)
}

// Run serves operators and keeps the units running until ctx ends. Units keep running afterwards if
// the runner supports it.
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
	running.Go(func() { a.reconcileUnits(ctx) })
	if a.opts.PollInterruption != nil {
		running.Go(func() { a.watchNotices(ctx) })
	}
	if a.opts.GPUs != nil {
		running.Go(func() { a.watchGPUs(ctx) })
	}
	if a.opts.PollRebalance != nil {
		running.Go(func() { a.watchAdvice(ctx) })
	}
	running.Go(func() {
		<-ctx.Done()
		_ = server.Close() // operators retry
	})
	if a.opts.OnListen != nil {
		a.opts.OnListen(ln.Addr().String())
	}
	err = server.Serve(tls.NewListener(ln, a.operatorTLS()))
	cancel()
	running.Wait()
	a.closeProxy()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving operators: %w", err)
}

// publish publishes the key's fingerprint: every publishInterval until the machine is enrolled, and
// every republishInterval afterwards. An operator or the controller reads it again to replace an
// expired certificate.
func (a *Agent) publish(ctx context.Context) {
	var last time.Time
	a.repeat(ctx, publishInterval, func() (done bool) {
		if a.currentCredentials() != nil && !last.IsZero() && time.Since(last) < republishInterval {
			return false
		}
		last = time.Now()
		if err := a.opts.Publisher.Publish(ctx, a.opts.Name, a.Fingerprint()); err != nil && ctx.Err() == nil {
			a.log.Error("publishing the fingerprint of this machine's key failed", "err", err)
		}
		return false
	})
}

// repeat calls do immediately and then at an interval, until do returns true or ctx ends.
func (a *Agent) repeat(ctx context.Context, interval time.Duration, do func() (done bool)) {
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

// currentCredentials returns the machine's identity; nil until it is enrolled.
func (a *Agent) currentCredentials() *identity.Party {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.credentials
}
