package lbd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"skyserve/internal/acme"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// openACME creates the manager that obtains the public listener's certificate, and loads the
// certificate of an earlier run. It does nothing if another program writes the certificate.
func (b *balancer) openACME(ctx context.Context) error {
	t, c := b.cfg.Balancer.TLS, b.cfg.Certificate
	if t == nil || t.ACME == nil {
		return nil
	}
	o := acme.Options{
		Name: c.Name, Email: t.ACME.Email, Directory: t.ACME.DirectoryURL(), Challenge: challengeOf(t.ACME), Resolvers: t.ACME.Resolvers,
		ListenTLS: b.cfg.Listen, Dir: c.Dir, Store: b.store, ID: b.cfg.ID, Secret: b.cfg.PeerToken, Logger: b.log,
		Changed: b.certificateChanged,
	}
	if err := b.loadACMEOptions(ctx, &o, *t.ACME); err != nil {
		return err
	}
	m, err := acme.New(o)
	if err != nil {
		return &ConfigError{Key: "certificate.dir", Problem: err.Error()}
	}
	b.cert = &certificate{manager: m, files: service.TLS{Cert: m.File(), Key: m.File()}}
	if pair, err := loadPair(b.cert.files); err == nil {
		b.cert.replace(pair)
	} else if !os.IsNotExist(err) {
		b.log.Error("loading the stored certificate failed", "file", m.File(), "err", err)
	}
	return nil
}

// challengeOf returns the challenge with which the CA validates the name. The default needs only
// the public listener.
func challengeOf(a *service.ACME) string { return cmp.Or(a.Challenge, service.ChallengeTLSALPN) }

// loadACMEOptions reads the files and variables to which the configuration refers.
func (b *balancer) loadACMEOptions(ctx context.Context, o *acme.Options, a service.ACME) error {
	if a.Root != "" {
		text, err := os.ReadFile(a.Root)
		if err != nil {
			return &ConfigError{Key: "balancer.tls.acme.root", Problem: err.Error()}
		}
		if o.Roots = x509.NewCertPool(); !o.Roots.AppendCertsFromPEM(text) {
			return &ConfigError{Key: "balancer.tls.acme.root", Problem: a.Root + ": must contain a PEM certificate"}
		}
	}
	if a.EAB != nil {
		text, err := secretFrom(a.EAB.HMAC)
		if err != nil {
			return &ConfigError{Key: "balancer.tls.acme.eab.hmac", Problem: err.Error()}
		}
		o.KeyID, o.MAC = a.EAB.KeyID, strings.TrimSpace(text)
	}
	c := b.cfg.Certificate
	if o.Challenge == service.ChallengeDNS && !c.FollowOnly {
		records, err := b.opts.NewDNSRecords(ctx, *c)
		if err != nil {
			return &ConfigError{Key: "certificate.zone", Problem: err.Error()}
		}
		o.Records = records
	}
	if o.Challenge != service.ChallengeHTTP {
		return nil
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return &ConfigError{Key: "certificate.listen", Problem: err.Error(), Hint: "the port may be in use by another process, or require root"}
	}
	b.challengeListener, o.ListenHTTP = l, l.Addr().String()
	return nil
}

// certificateChanged loads a newly obtained certificate.
func (b *balancer) certificateChanged() {
	b.reloading.Lock()
	defer b.reloading.Unlock()
	switch changed, err := b.cert.reloadIfChanged(); {
	case err != nil:
		b.log.Error("loading the obtained certificate failed", "file", b.cert.files.Cert, "err", err)
	case changed:
		b.recordEvent(telemetry.EventCertificate, fmt.Sprintf("%s uses a new certificate for %s, valid until %s", b.cfg.ID, b.cfg.Certificate.Name, b.cert.expires().UTC().Format(time.DateOnly)), "the previous one expires or is missing")
		b.log.Info("certificate in use", "name", b.cfg.Certificate.Name, "expires", b.cert.expires())
	}
}

// manager returns the ACME manager of the public certificate; nil if there is none.
func (b *balancer) manager() *acme.Manager {
	if b.cert == nil {
		return nil
	}
	return b.cert.manager
}

// challengeServer returns the server for HTTP challenges on their own port; nil if there is none.
func (b *balancer) challengeServer() *http.Server {
	if b.challengeListener == nil {
		return nil
	}
	s := b.server(b.manager().Handler())
	s.WriteTimeout, s.MaxHeaderBytes = writeTimeout, maxChallengeHead
	return s
}

// maxChallengeHead is much more than the size of a CA's request.
const maxChallengeHead = 8 << 10

// publicTLS returns the TLS configuration of the public listener.
func (b *balancer) publicTLS() *tls.Config {
	c := &tls.Config{GetCertificate: b.cert.getCertificate, MinVersion: tls.VersionTLS12, NextProtos: nextProtos}
	if m := b.manager(); m != nil {
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) { return m.TLSConfig(hello), nil }
	}
	return c
}

// checkACME checks that a certificate can be obtained or loaded.
func checkACME(p *problems, cfg service.BalancerConfig, opts Options) {
	t, c := cfg.Balancer.TLS, cfg.Certificate
	if t == nil || t.ACME == nil {
		if c != nil {
			p.addProblem("certificate", "applies only with balancer.tls.acme", "remove it")
		}
		return
	}
	a := t.ACME
	if t.Cert != "" || t.Key != "" {
		p.addProblem("balancer.tls.acme", "cannot be combined with cert and key", "remove one of them")
	}
	if a.Email == "" {
		p.addProblem("balancer.tls.acme.email", "is required", "")
	}
	challenge := challengeOf(a)
	if err := service.CheckValue("ACME.challenge", challenge); err != nil {
		p.addProblem("balancer.tls.acme.challenge", err.Error(), "")
	}
	if c == nil || c.Name == "" || c.Dir == "" {
		p.addProblem("certificate", "requires name and dir: the name in the certificate and the directory to store it in", "")
		return
	}
	if cfg.StoreURL != "" && cfg.PeerToken == "" {
		p.addProblem("peer_token", "is required: it encrypts the certificate that balancers share in the store", "set peer_token (the environment variable SKYSERVE_PEER_TOKEN), the same for all balancers of the service")
	}
	if _, port, err := net.SplitHostPort(c.Listen); challenge == service.ChallengeHTTP && (err != nil || port == "") {
		p.addProblem("certificate.listen", fmt.Sprintf("must be HOST:PORT with the challenge %s, got %q", challenge, c.Listen), "")
	}
	if challenge == service.ChallengeDNS && !c.FollowOnly && opts.NewDNSRecords == nil {
		p.addProblem("balancer.tls.acme.challenge", "dns-01: this balancer cannot write DNS records", "")
	}
}
