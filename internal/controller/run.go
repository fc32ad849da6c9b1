package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/goccy/go-yaml"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// Limits of the controller's own listener.
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
		return c, fmt.Errorf("reading the controller's configuration %s: %w", path, err)
	}
	return c, checkConfig(path, c)
}

// checkConfig refuses what cannot work.
func checkConfig(path string, c service.ControllerConfig) error {
	host, _, err := net.SplitHostPort(c.Listen)
	switch {
	case c.Service == "":
		return fmt.Errorf("reading %s: service: missing", path)
	case err != nil:
		return fmt.Errorf("reading %s: listen: %w", path, err)
	case net.ParseIP(host) == nil || !net.ParseIP(host).IsLoopback():
		return fmt.Errorf("reading %s: listen: must be a loopback address, because it has no authentication, got %q", path, c.Listen)
	case (c.StoreListen == "") == (c.StoreURL == ""):
		return fmt.Errorf("reading %s: one of store_listen and store_url is needed, and not both", path)
	case c.StoreListen != "" && c.StoreDir == "":
		return fmt.Errorf("reading %s: store_dir: missing, and store_listen needs it", path)
	}
	return nil
}

// Run is the controller process: it serves the embedded store where the
// configuration asks for it, and controls the service until ctx ends. Errors
// are of starting; once started it goes on whatever fails around it.
func Run(ctx context.Context, config service.ControllerConfig, log *slog.Logger, more ...Option) error {
	ln, err := net.Listen("tcp", config.Listen)
	if err != nil {
		return fmt.Errorf("starting the controller: %w", err)
	}
	defer ln.Close()
	self, revoked, err := partyOf(config)
	if err != nil {
		return err
	}
	st, health, closeStore, err := openStore(ctx, config, self, log)
	if err != nil {
		return err
	}
	defer closeStore()
	acquire := func(ctx context.Context) (lease, error) {
		return st.Acquire(ctx, telemetry.ControllerLease(config.Service), holderName(), leaseTTL)
	}
	hc := adminClient(config, self)
	c := newController(config, st, acquire, func(base string) admin { return telemetry.NewClient(base, hc) }, log)
	c.store, c.revoked = health, revoked
	for _, o := range more {
		o(&c.options)
	}
	var admins []*telemetry.Client
	for _, b := range config.Balancers {
		admins = append(admins, telemetry.NewClient(b.Admin, hc))
	}
	force := new(inForce)
	r := newReconciler(admins, log)
	r.machines, r.planner = c.options.machines, newPlanner(config, st, force, log)
	if m, knows := c.options.actuator.(Market); knows {
		r.planner.offers = m.Offers
	}
	if c.options.actuator != nil {
		r.scaler = newScaler(config, st, c.options.actuator, force, log)
	}
	c.reconciler = r
	return c.serve(ctx, ln)
}

// partyOf is the controller as a party of its service, and the list of those whom it lets in
// no more; nil where it has no identity.
func partyOf(config service.ControllerConfig) (*identity.Party, *identity.RevokedFile, error) {
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
		return nil, nil, fmt.Errorf("starting the controller: identity: %w", err)
	}
	self.Revoked = revoked.Has
	return &self, revoked, nil
}

// revokedEvery is how often the list of revoked certificates is read, as balancers do.
const revokedEvery = 5 * time.Second

// lookForRevoked takes up newer lists until ctx ends.
func (c *Controller) lookForRevoked(ctx context.Context) {
	tick := time.NewTicker(revokedEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := c.revoked.Look(); err != nil {
			c.log.Debug("the list of revoked certificates cannot be used; the one in use stays", "file", c.revoked.Path(), "err", err)
		}
	}
}

// adminClient is how the controller speaks to balancers: by its certificate where it
// has one, else with their token.
func adminClient(config service.ControllerConfig, self *identity.Party) *http.Client {
	if self == nil {
		return telemetry.HTTPClient(config.AdminToken)
	}
	return telemetry.SecureClient(self.Client(identity.Balancer))
}

// serve answers on ln and controls, until ctx ends or answering fails.
func (c *Controller) serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	srv := &http.Server{Handler: c.handler(), ReadHeaderTimeout: headerTimeout}
	var wg sync.WaitGroup
	wg.Go(func() { c.run(ctx) })
	if c.revoked != nil {
		wg.Go(func() { c.lookForRevoked(ctx) })
	}
	if c.options.read != nil && c.options.hangups != nil {
		wg.Go(func() { c.heed(ctx) })
	}
	wg.Go(func() {
		<-ctx.Done()
		end, stop := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer stop()
		_ = srv.Shutdown(end) // what is left of it ends with the process
	})
	c.log.Info("controller started", "service", c.config.Service, "listen", ln.Addr().String())
	err := srv.Serve(ln)
	cancel()
	wg.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving the controller's listener: %w", err)
}

// openStore serves the embedded store where the configuration asks for it, and is a
// client of that one, or of the one that runs elsewhere. An embedded store of a
// controller with an identity lets balancers of its service in and nobody else.
func openStore(ctx context.Context, config service.ControllerConfig, self *identity.Party, log *slog.Logger) (st *store.Store, health storeHealth, closeAll func(), err error) {
	url := config.StoreURL
	options := []store.Option{store.ForService(config.Service), store.Lazy(), store.ClientName("controller"), store.Logger(log)}
	closeAll = func() {}
	if url == "" {
		o := store.Options{Dir: config.StoreDir, Listen: config.StoreListen, Token: config.StoreToken, Logger: log}
		if self != nil {
			o.TLS = self.Server(identity.Balancer, identity.Controller)
			options = append(options, store.Secure(self.Client(identity.Controller)))
		}
		// The store outlives ctx by as long as the lease takes to be given up.
		srv, err := store.Serve(context.WithoutCancel(ctx), o)
		if err != nil {
			return nil, health, nil, err
		}
		url, closeAll = srv.URL(), srv.Close
		health = storeHealth{dir: config.StoreDir, broken: srv.Health, free: srv.Free}
	}
	if st, err = store.Connect(ctx, url, config.StoreToken, options...); err != nil {
		closeAll()
		return nil, health, nil, err
	}
	health.client = st.Problem
	closeServer := closeAll
	return st, health, func() { st.Close(); closeServer() }, nil
}

// holderName says which process holds the lease, for people.
func holderName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}
