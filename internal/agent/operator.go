package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"skyserve/internal/identity"
)

// ErrNoFingerprint is a machine that has not told its key's fingerprint yet: it boots.
var ErrNoFingerprint = errors.New("the machine has not told its fingerprint yet")

// Machine is a machine as an operator addresses it.
type Machine struct {
	Name identity.Name
	// Address is host:port of its agent.
	Address string
	// Fingerprint reads what its Publisher told, by way of its cloud; ErrNoFingerprint
	// while there is nothing. It is asked only until the machine is enrolled.
	Fingerprint func(ctx context.Context) (string, error)
}

// Operator is the side that hands over. It is an operator, or a controller with a
// delegated authority.
type Operator struct {
	// Party presents a certificate with its whole chain, and Authority certifies machines;
	// without one nothing is enrolled, and what ends soon is left to who has it.
	Party     identity.Party
	Authority *identity.Authority
	// Revoked is the newest list of revoked certificates that it knows of.
	Revoked identity.Revoked
	// Dial opens connections; nil = a net.Dialer. fingerprint is that of the key which a
	// machine without a good certificate has; empty where it must have one.
	Dial func(ctx context.Context, addr, fingerprint string) (net.Conn, error)
	// Now is time.Now where it is nil.
	Now func() time.Time

	key string // fingerprint of the machine that is being enrolled; empty but then
}

// dialTimeout bounds reaching a machine, half a world away and handshake included.
const dialTimeout = 10 * time.Second

func (o *Operator) now() time.Time {
	if o.Now == nil {
		return time.Now()
	}
	return o.Now()
}

// Ensure makes a machine one of the service that runs d: it hands everything over to one
// that is new, another deployment to one whose revision differs, another certificate to
// one whose own ends soon, and the list of revoked certificates to one whose own is older.
// Repeating it changes nothing. Errors include ErrNoFingerprint, ErrNoAuthority,
// *identity.PinError, and net errors of a machine that cannot be reached yet.
func (o *Operator) Ensure(ctx context.Context, m Machine, d Deployment) (Status, error) {
	s, err := o.Status(ctx, m)
	switch {
	case errors.Is(err, identity.ErrStranger): // it has no certificate of the service, or one that ended
		if err := o.enrol(ctx, m, d); err != nil {
			return s, err
		}
		s, err = o.Status(ctx, m)
	}
	if err != nil {
		return s, err
	}
	if o.Renews(s) {
		if err := o.Renew(ctx, m); err != nil {
			return s, err
		}
	}
	if s.Revoked < o.Revoked.Number() {
		if err := o.Revoke(ctx, m); err != nil {
			return s, err
		}
	}
	if s.Revision != d.Revision {
		if err := o.put(ctx, m, o.Party.To(m.Name), pathDeployment, d); err != nil {
			return s, err
		}
	}
	return o.Status(ctx, m)
}

// worthwhile is by how much a new certificate must outlast the one it replaces.
const worthwhile = 24 * time.Hour

// Renews says whether Ensure gives a machine another certificate: its own ends soon, and
// the authority lasts longer, or who signed it is revoked.
func (o *Operator) Renews(s Status) bool {
	if o.Authority == nil {
		return false
	}
	soon := s.Expires.Before(o.now().Add(identity.RenewBefore)) && o.Authority.Ends().After(s.Expires.Add(worthwhile))
	return soon || o.Revoked.HasSerial(s.Issuer)
}

// enrol hands over to a machine that shows the key whose fingerprint it published. One
// that was enrolled before, and whose certificate ended, gets another.
func (o *Operator) enrol(ctx context.Context, m Machine, d Deployment) error {
	fingerprint, err := m.Fingerprint(ctx)
	if err != nil {
		return fmt.Errorf("enrolling %s: reading its fingerprint: %w", m.Name.ID, err)
	}
	config, to := o.Party.Pinned(fingerprint), *o
	to.key = fingerprint
	shown, err := to.shown(ctx, m, config)
	if err != nil {
		return fmt.Errorf("enrolling %s: %w", m.Name.ID, err)
	}
	text, err := o.certify(shown, m.Name)
	if err != nil {
		return fmt.Errorf("enrolling %s: %w", m.Name.ID, err)
	}
	err = to.put(ctx, m, config, pathEnrolment, enrolment{Chain: text, Deployment: d})
	var refusal *Refusal
	if errors.As(err, &refusal) && refusal.Status == http.StatusConflict {
		return to.put(ctx, m, config, pathCertificate, renewal{Chain: text})
	}
	return err
}

// Renew gives a machine another certificate for the key that it shows.
func (o *Operator) Renew(ctx context.Context, m Machine) error {
	config := o.Party.To(m.Name)
	shown, err := o.shown(ctx, m, config)
	if err != nil {
		return fmt.Errorf("renewing the certificate of %s: %w", m.Name.ID, err)
	}
	text, err := o.certify(shown, m.Name)
	if err != nil {
		return fmt.Errorf("renewing the certificate of %s: %w", m.Name.ID, err)
	}
	return o.put(ctx, m, config, pathCertificate, renewal{Chain: text})
}

// ErrNoAuthority is what an operator who was invited cannot do: certify a machine.
var ErrNoAuthority = errors.New("the service's certificate authority is on another machine")

// certify is a chain, in PEM, for the key of the certificate that a machine showed.
func (o *Operator) certify(shown *x509.Certificate, n identity.Name) (chain string, err error) {
	if o.Authority == nil {
		return "", ErrNoAuthority
	}
	certs, err := o.Authority.Certify(shown.PublicKey, n, o.now(), identity.Life)
	return string(identity.EncodeChain(certs)), err
}

// shown is the certificate that a machine shows, which proves that it has the key.
func (o *Operator) shown(ctx context.Context, m Machine, config *tls.Config) (*x509.Certificate, error) {
	nc, err := o.dial(ctx, m.Address)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn := tls.Client(nc, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return conn.ConnectionState().PeerCertificates[0], nil
}

func (o *Operator) dial(ctx context.Context, addr string) (net.Conn, error) {
	if o.Dial != nil {
		return o.Dial(ctx, addr, o.key)
	}
	return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", addr)
}

// Revoke hands a machine the list of revoked certificates. One that has a newer list
// refuses it: a *Refusal with status 409.
func (o *Operator) Revoke(ctx context.Context, m Machine) error {
	return o.put(ctx, m, o.Party.To(m.Name), pathRevoked, revocation{List: string(o.Revoked.Text())})
}

// Status asks a machine how it does; identity.ErrStranger when it is not enrolled.
func (o *Operator) Status(ctx context.Context, m Machine) (Status, error) {
	var s Status
	body, err := o.do(ctx, m, o.Party.To(m.Name), http.MethodGet, pathStatus, nil)
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	if err != nil {
		return s, fmt.Errorf("asking %s how it does: %w", m.Name.ID, err)
	}
	return s, nil
}

// Drain lets a machine take nothing new.
func (o *Operator) Drain(ctx context.Context, m Machine) error {
	_, err := o.do(ctx, m, o.Party.To(m.Name), http.MethodPost, pathDrain, nil)
	if err != nil {
		return fmt.Errorf("draining %s: %w", m.Name.ID, err)
	}
	return nil
}

// Logs are the last lines that a unit of a machine wrote.
func (o *Operator) Logs(ctx context.Context, m Machine, unit string, lines int) ([]byte, error) {
	text, err := o.do(ctx, m, o.Party.To(m.Name), http.MethodGet, pathLogs+url.PathEscape(unit)+"?lines="+strconv.Itoa(lines), nil)
	if err != nil {
		return nil, fmt.Errorf("reading the log of %s on %s: %w", unit, m.Name.ID, err)
	}
	return text, nil
}

// Cloud has a machine act in its cloud, and returns its answer; call is the last word of
// the path. Only a controller may ask. ctx bounds how long that may take.
func (o *Operator) Cloud(ctx context.Context, m Machine, call string, body []byte) ([]byte, error) {
	text, err := o.exchange(ctx, m, o.Party.To(m.Name), http.MethodPost, pathCloud+url.PathEscape(call), body, 0)
	if err != nil {
		return nil, fmt.Errorf("asking %s to act in its cloud: %w", m.Name.ID, err)
	}
	return text, nil
}

func (o *Operator) put(ctx context.Context, m Machine, config *tls.Config, path string, v any) error {
	body, err := json.Marshal(v)
	if err == nil {
		_, err = o.do(ctx, m, config, http.MethodPut, path, body)
	}
	if err != nil {
		return fmt.Errorf("handing over to %s: %w", m.Name.ID, err)
	}
	return nil
}

// Refusal is a machine's answer that is no success.
type Refusal struct {
	Status  int
	Message string
}

// Error is what the machine said.
func (e *Refusal) Error() string { return fmt.Sprintf("%d %s", e.Status, e.Message) }

// do performs one exchange with a machine that answers soon.
func (o *Operator) do(ctx context.Context, m Machine, config *tls.Config, method, path string, body []byte) ([]byte, error) {
	return o.exchange(ctx, m, config, method, path, body, requestTimeout)
}

// exchange asks over a connection of its own: machines are asked seldom, and what they show
// changes. timeout is how long an answer may take to begin; 0 = as long as ctx lets it.
func (o *Operator) exchange(ctx context.Context, m Machine, config *tls.Config, method, path string, body []byte, timeout time.Duration) ([]byte, error) {
	transport := &http.Transport{
		DialContext:     func(ctx context.Context, _, addr string) (net.Conn, error) { return o.dial(ctx, addr) },
		TLSClientConfig: config, TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: timeout, DisableKeepAlives: true,
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, "https://"+m.Address+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // which machine is said by who called
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return nil, said(resp)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxBody))
}

// said is an answer that is no success, as an error.
func said(resp *http.Response) error {
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return err
	}
	_ = json.Unmarshal(text, &body) // what is no document of the agent's has no message
	return &Refusal{resp.StatusCode, body.Error.Message}
}
