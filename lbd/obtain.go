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

	"skyserve/internal/acme"
	"skyserve/internal/service"
)

// openACME makes what obtains the public listener's certificate, and takes up the one that
// an earlier run left; it does nothing where the certificate comes from elsewhere.
func (b *balancer) openACME(ctx context.Context) error {
	t, c := b.cfg.Balancer.TLS, b.cfg.Certificate
	if t == nil || t.ACME == nil {
		return nil
	}
	o := acme.Options{
		Name: c.Name, Email: t.ACME.Email, Directory: t.ACME.Directory(), Challenge: challengeOf(t.ACME), Resolvers: t.ACME.Resolvers,
		ListenTLS: b.cfg.Listen, Dir: c.Dir, Store: b.store, ID: b.cfg.ID, Secret: b.cfg.PeerToken, Logger: b.log,
		Changed: b.certificateChanged,
	}
	if err := b.fillACME(ctx, &o, *t.ACME); err != nil {
		return err
	}
	m, err := acme.New(o)
	if err != nil {
		return &ConfigError{Key: "certificate.dir", Problem: err.Error()}
	}
	b.cert = &certificate{manager: m, files: service.TLS{Cert: m.File(), Key: m.File()}}
	if pair, err := loadPair(b.cert.files); err == nil {
		b.cert.use(pair)
	} else if !os.IsNotExist(err) {
		b.log.Error("the certificate of an earlier run cannot be used", "file", m.File(), "err", err)
	}
	return nil
}

// challengeOf is how an authority makes sure of the name; the default is the one that needs
// nothing but the public listener.
func challengeOf(a *service.ACME) string { return cmp.Or(a.Challenge, service.ChallengeTLSALPN) }

// fillACME gets hold of what the configuration only names.
func (b *balancer) fillACME(ctx context.Context, o *acme.Options, a service.ACME) error {
	if a.Root != "" {
		text, err := os.ReadFile(a.Root)
		if err != nil {
			return &ConfigError{Key: "balancer.tls.acme.root", Problem: err.Error()}
		}
		if o.Roots = x509.NewCertPool(); !o.Roots.AppendCertsFromPEM(text) {
			return &ConfigError{Key: "balancer.tls.acme.root", Problem: a.Root + " holds no certificate in PEM"}
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
		records, err := b.opts.Records(ctx, *c)
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
		return &ConfigError{Key: "certificate.listen", Problem: err.Error(), Hint: "another process may listen there, or the port may be root's alone"}
	}
	b.challenges, o.ListenHTTP = l, l.Addr().String()
	return nil
}

// certificateChanged takes up a certificate that was obtained.
func (b *balancer) certificateChanged() {
	b.reloading.Lock()
	defer b.reloading.Unlock()
	switch changed, err := b.cert.look(); {
	case err != nil:
		b.log.Error("the certificate that was obtained cannot be used", "file", b.cert.files.Cert, "err", err)
	case changed:
		b.log.Info("certificate in use", "name", b.cfg.Certificate.Name, "expires", b.cert.expires())
	}
}

// manager is what obtains the public certificate; nil where nothing does.
func (b *balancer) manager() *acme.Manager {
	if b.cert == nil {
		return nil
	}
	return b.cert.manager
}

// challengeServer answers an authority on a port of its own; nil where there is none.
func (b *balancer) challengeServer() *http.Server {
	if b.challenges == nil {
		return nil
	}
	s := b.server(b.manager().Handler())
	s.WriteTimeout, s.MaxHeaderBytes = writeTimeout, maxChallengeHead
	return s
}

// maxChallengeHead is far more than an authority asks with.
const maxChallengeHead = 8 << 10

// publicTLS is how the public listener speaks TLS.
func (b *balancer) publicTLS() *tls.Config {
	c := &tls.Config{GetCertificate: b.cert.get, MinVersion: tls.VersionTLS12, NextProtos: nextProtos}
	if m := b.manager(); m != nil {
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) { return m.TLSConfig(hello), nil }
	}
	return c
}

// checkACME makes sure that a certificate can be obtained, or taken up.
func checkACME(p *problems, cfg service.BalancerConfig, opts Options) {
	t, c := cfg.Balancer.TLS, cfg.Certificate
	if t == nil || t.ACME == nil {
		if c != nil {
			p.add("certificate", "belongs to balancers with balancer.tls.acme", "remove it")
		}
		return
	}
	a := t.ACME
	if t.Cert != "" || t.Key != "" {
		p.add("balancer.tls.acme", "cannot stand beside cert and key", "remove one of them")
	}
	if a.Email == "" {
		p.add("balancer.tls.acme.email", "missing", "")
	}
	challenge := challengeOf(a)
	if err := service.CheckWord("ACME.challenge", challenge); err != nil {
		p.add("balancer.tls.acme.challenge", err.Error(), "")
	}
	if c == nil || c.Name == "" || c.Dir == "" {
		p.add("certificate", "needs name and dir: what the certificate is for, and where it is kept", "")
		return
	}
	if cfg.StoreURL != "" && cfg.PeerToken == "" {
		p.add("peer_token", "missing: it encrypts the certificate that balancers share in the store", "set peer_token (the environment variable SKYSERVE_PEER_TOKEN), the same for all balancers of the service")
	}
	if _, port, err := net.SplitHostPort(c.Listen); challenge == service.ChallengeHTTP && (err != nil || port == "") {
		p.add("certificate.listen", fmt.Sprintf("must be HOST:PORT with the challenge %s, got %q", challenge, c.Listen), "")
	}
	if challenge == service.ChallengeDNS && !c.FollowOnly && opts.Records == nil {
		p.add("balancer.tls.acme.challenge", "dns-01: this program has no way to write records", "")
	}
}
