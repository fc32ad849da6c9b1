package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/goccy/go-yaml"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// Timeouts of the controller's own listener.
const (
	headerTimeout = 5 * time.Second
	stopTimeout   = 2 * time.Second
)

// ReadConfig reads a controller's configuration file, YAML or JSON.
func ReadConfig(path string) (service.ControllerConfig, error) {
	var c service.ControllerConfig
	data, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("reading the controller's configuration: %w", err)
	}
	if err := yaml.UnmarshalWithOptions(data, &c, yaml.Strict()); err != nil {
		return c, describeConfigError(path, err)
	}
	return c, checkConfig(path, c)
}

// describeConfigError returns an error of the YAML parser with its line and column.
func describeConfigError(path string, err error) error {
	var ye yaml.Error
	if !errors.As(err, &ye) || ye.GetToken() == nil || ye.GetToken().Position == nil {
		return fmt.Errorf("reading the controller's configuration %s: %w", path, err)
	}
	p := ye.GetToken().Position
	return fmt.Errorf("reading the controller's configuration %s:%d:%d: %s", path, p.Line, p.Column, strings.Replace(ye.GetMessage(), "unknown field", "unknown key", 1))
}

// checkConfig rejects an invalid configuration.
func checkConfig(path string, c service.ControllerConfig) error {
	host, _, err := net.SplitHostPort(c.Listen)
	switch {
	case c.Service == "":
		return fmt.Errorf("reading %s: service is required", path)
	case err != nil:
		return fmt.Errorf("reading %s: listen must be host:port: %w", path, err)
	case net.ParseIP(host) == nil || !net.ParseIP(host).IsLoopback():
		return fmt.Errorf("reading %s: listen must be a loopback IP address such as 127.0.0.1:8410, got %q: this listener has no authentication", path, c.Listen)
	case (c.StoreListen == "") == (c.StoreURL == ""):
		return fmt.Errorf("reading %s: exactly one of store_listen and store_url is required", path)
	case c.StoreListen != "" && c.StoreDir == "":
		return fmt.Errorf("reading %s: store_dir is required with store_listen", path)
	case c.StoreCluster != nil && (c.StoreListen == "" || c.ID == ""):
		return fmt.Errorf("reading %s: id and store_listen are required with store_cluster", path)
	}
	return nil
}

// Run runs the controller process: it serves the embedded store if configured, and controls the
// service until ctx ends. It returns an error when the start or the listener fails; other failures
// are logged and retried.
func Run(ctx context.Context, config service.ControllerConfig, log *slog.Logger, options ...Option) error {
	ln, err := net.Listen("tcp", config.Listen)
	if err != nil {
		return fmt.Errorf("starting the controller: %w", err)
	}
	defer ln.Close()
	self, revoked, err := loadIdentity(config)
	if err != nil {
		return err
	}
	st, health, closeStore, err := openStore(ctx, config, self, log)
	if err != nil {
		return err
	}
	defer closeStore()
	acquire := func(ctx context.Context) (lease, error) {
		return st.Acquire(ctx, telemetry.ControllerLease(config.Service), cmp.Or(config.ID, holderName()), leaseTTL)
	}
	hc := adminClient(config, self)
	c := newController(config, st, acquire, func(base string) adminAPI { return telemetry.NewClient(base, hc) }, log)
	c.health, c.revoked, c.announcements, c.backupSource = health, revoked, st, st
	c.events = store.NewEventQueue(st, eventIDPrefix(time.Now()), telemetry.Event{Actor: telemetry.ActorController, Object: c.name()}, log)
	for _, o := range options {
		o(&c.options)
	}
	review := new(reviewInForce)
	loop := newControlLoop(log)
	c.applyImmediately = func(next service.ControllerConfig) error {
		loop.setBalancers(next.Balancers, hc)
		return health.setMembers(next)
	}
	loop.setBalancers(config.Balancers, hc)
	loop.machines, loop.planner = c.options.machines, newPlanner(config, st, review, log)
	loop.records = func(l lease) Records { return termRecords{config.Service, l, st} }
	loop.planner.recordEvent = c.recordEvent
	if m, ok := loop.machines.(EventRecording); ok {
		m.RecordEventsWith(c.recordEvent)
	}
	if m, ok := c.options.actuator.(OfferingSource); ok {
		loop.planner.source = m
	}
	if c.options.actuator != nil {
		loop.scaler = newScaler(config, st, c.options.actuator, review, log)
		loop.scaler.recordEvent = c.recordEvent
	}
	c.options.alerts = append(c.options.alerts, review.budgetAlerts)
	c.loop = loop
	return c.runProcess(ctx, ln)
}

// loadIdentity loads the controller's identity and its revocation list; nil without an identity.
func loadIdentity(config service.ControllerConfig) (*identity.Party, *identity.RevokedFile, error) {
	i := config.Identity
	if i == nil {
		return nil, nil, nil
	}
	self, err := identity.Load(i.Cert, i.Key, i.CA)
	var revoked *identity.RevokedFile
	if err == nil {
		revoked, err = identity.OpenRevoked(i.Revoked, self.Root)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("starting the controller: loading its identity: %w", err)
	}
	self.Revoked = revoked.Has
	return &self, revoked, nil
}

// revocationInterval is the interval at which the revocation list is checked, as at balancers.
const revocationInterval = 5 * time.Second

// watchRevocations reloads newer revocation lists until ctx ends.
func (c *Controller) watchRevocations(ctx context.Context) {
	tick := time.NewTicker(revocationInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := c.revoked.Reload(); err != nil {
			c.log.Debug("reading the revocation list failed; the previous list stays in effect", "file", c.revoked.Path(), "err", err)
		}
	}
}

// adminClient returns the HTTP client for balancers: with the controller's certificate where it has
// one, otherwise with their token.
func adminClient(config service.ControllerConfig, self *identity.Party) *http.Client {
	if self == nil {
		return telemetry.HTTPClient(config.AdminToken)
	}
	return telemetry.SecureClient(self.Client(identity.Balancer))
}

// runProcess serves ln, controls the service and reloads the configuration and the revocation list,
// until ctx ends or serving fails.
func (c *Controller) runProcess(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	srv := &http.Server{Handler: c.handler(), ReadHeaderTimeout: headerTimeout}
	var wg sync.WaitGroup
	wg.Go(func() { c.runController(ctx) })
	if c.events != nil {
		wg.Go(func() { c.events.Run(ctx) })
		wg.Go(func() { reportPending(ctx, c.events, c.sendPending) })
	}
	if c.announcements != nil {
		prefix := standbyPrefix(c.immutable.Service)
		wg.Go(func() { c.standbys.track(prefix, c.announcements.Watch(ctx, prefix)) })
	}
	if c.revoked != nil {
		wg.Go(func() { c.watchRevocations(ctx) })
	}
	if c.options.readConfig != nil && c.options.reloadSignals != nil {
		wg.Go(func() { c.reloadOnSignal(ctx) })
	}
	wg.Go(func() {
		<-ctx.Done()
		end, stop := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer stop()
		_ = srv.Shutdown(end) // remaining connections end with the process
	})
	c.log.Info("controller started", "service", c.immutable.Service, "listen", ln.Addr().String())
	err := srv.Serve(ln)
	cancel()
	wg.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving the controller's listener: %w", err)
}

// openStore serves the embedded store if configured, and connects to it or to the external one. The
// embedded store of a controller with an identity only accepts balancers and controllers of its
// service.
func openStore(ctx context.Context, config service.ControllerConfig, self *identity.Party, log *slog.Logger) (st *store.Store, health storeHealth, closeAll func(), err error) {
	url := config.StoreURL
	var member *store.Server // nil = no member of a cluster
	options := []store.Option{store.ForService(config.Service), store.Lazy(), store.ClientName("controller"), store.Logger(log)}
	closeAll = func() {}
	if url == "" {
		o := store.Options{Dir: config.StoreDir, Listen: config.StoreListen, Token: config.StoreToken, Logger: log}
		if self != nil {
			o.TLS = self.Server(identity.Balancer, identity.Controller)
			options = append(options, store.Secure(self.Client(identity.Controller)))
		}
		wasMember, err := store.IsMember(config.StoreDir)
		if err != nil {
			return nil, health, nil, err
		}
		srv, err := serveStore(ctx, config, self, o)
		if err != nil {
			return nil, health, nil, err
		}
		url, closeAll = srv.URL(), srv.Close
		health = storeHealth{dir: config.StoreDir, writeOutage: srv.Outage, free: srv.FreeBytes}
		if c := config.StoreCluster; c != nil {
			url = storeURL(srv, *c)
			health.newMember, health.started = !wasMember, time.Now()
			health.cluster = func() telemetry.StoreState { return clusterState(srv.Cluster(), time.Now()) }
			member = srv
		}
	}
	if st, err = store.Connect(ctx, url, config.StoreToken, options...); err != nil {
		closeAll()
		return nil, health, nil, err
	}
	health.clientOutage = st.Outage
	health.setMembers = func(next service.ControllerConfig) error { return applyMembers(next, member, st) }
	closeServer := closeAll
	return st, health, func() { st.Close(); closeServer() }, nil
}

// holderName identifies this process by host name and process ID, as the holder of the lease and in the IDs of events.
func holderName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}
