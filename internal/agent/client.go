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

// ErrNoFingerprint means that a machine has not published the fingerprint of its key: it is booting.
var ErrNoFingerprint = errors.New("the machine has not published the fingerprint of its key yet: it may still be booting")

// Target is a machine whose agent a Client calls.
type Target struct {
	Name identity.Name
	// Address is host:port of its agent.
	Address string
	// Fingerprint reads the published fingerprint through the machine's cloud. It returns
	// ErrNoFingerprint while there is none. It is only called for a machine without a valid certificate.
	Fingerprint func(ctx context.Context) (string, error)
}

// Client calls agents. An operator uses it, or a controller with a delegated CA: an intermediate CA that the service's
// CA has signed (identity.Authority.Delegate).
type Client struct {
	// Party presents a certificate with its whole chain. Authority signs certificates of machines;
	// nil = no machine can be enrolled and no certificate renewed.
	Party     identity.Party
	Authority *identity.Authority
	// Revoked is the newest known revocation list.
	Revoked identity.Revoked
	// Dial opens connections; nil = a net.Dialer. fingerprint is the fingerprint of the key of a
	// machine without a valid certificate; otherwise empty.
	Dial func(ctx context.Context, addr, fingerprint string) (net.Conn, error)
	// Now is the clock; nil = time.Now.
	Now func() time.Time
	// Kept keeps the connections for reading statuses open, with or without Dial; nil = each status is read over
	// a new connection.
	Kept *Connections

	key string // the fingerprint that Dial gets
}

// dialTimeout is the timeout for connecting to a distant machine, including the handshake.
const dialTimeout = 10 * time.Second

func (o *Client) now() time.Time {
	if o.Now == nil {
		return time.Now()
	}
	return o.Now()
}

// Ensure makes a machine run d as a part of the service. It enrols a new machine and renews a
// certificate that expires soon. It sends d to a machine with another revision, and the revocation
// list to a machine with an older one. It is idempotent. Errors include ErrNoFingerprint, ErrNoAuthority,
// *identity.PinError, and net errors of a machine that cannot be reached yet.
func (o *Client) Ensure(ctx context.Context, m Target, d Deployment) (Status, error) {
	s, err := o.Status(ctx, m)
	switch {
	case errors.Is(err, identity.ErrUntrusted): // it has no certificate of the service, or an expired one
		if err := o.enrol(ctx, m, d); err != nil {
			return s, err
		}
		s, err = o.Status(ctx, m)
	}
	if err != nil {
		return s, err
	}
	if o.NeedsRenewal(s) {
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

// minExtension is the minimum extension of the lifetime for a renewal.
const minExtension = 24 * time.Hour

// NeedsRenewal reports whether Ensure renews a machine's certificate: it expires soon and the CA outlives
// it, or its issuer is revoked.
func (o *Client) NeedsRenewal(s Status) bool {
	if o.Authority == nil {
		return false
	}
	soon := s.Expires.Before(o.now().Add(identity.RenewBefore)) && o.Authority.Expires().After(s.Expires.Add(minExtension))
	return soon || o.Revoked.HasSerial(s.Issuer)
}

// enrol enrols a machine that presents the key with the published fingerprint. A machine with an
// expired certificate receives a new one.
func (o *Client) enrol(ctx context.Context, m Target, d Deployment) error {
	fingerprint, err := m.Fingerprint(ctx)
	if err != nil {
		return fmt.Errorf("enrolling %s: reading the fingerprint of its key: %w", m.Name.ID, err)
	}
	config, to := o.Party.Pinned(fingerprint), *o
	to.key = fingerprint
	presented, err := to.presentedCertificate(ctx, m, config)
	if err != nil {
		return fmt.Errorf("enrolling %s: %w", m.Name.ID, err)
	}
	text, err := o.certify(presented, m.Name)
	if err != nil {
		return fmt.Errorf("enrolling %s: %w", m.Name.ID, err)
	}
	err = to.put(ctx, m, config, pathEnrolment, enrolment{Chain: text, Deployment: d})
	var refusal *StatusError
	if errors.As(err, &refusal) && refusal.Status == http.StatusConflict {
		return to.put(ctx, m, config, pathCertificate, renewal{Chain: text})
	}
	return err
}

// Renew issues another certificate for the machine's key.
func (o *Client) Renew(ctx context.Context, m Target) error {
	config := o.Party.To(m.Name)
	presented, err := o.presentedCertificate(ctx, m, config)
	if err != nil {
		return fmt.Errorf("renewing the certificate of %s: %w", m.Name.ID, err)
	}
	text, err := o.certify(presented, m.Name)
	if err != nil {
		return fmt.Errorf("renewing the certificate of %s: %w", m.Name.ID, err)
	}
	return o.put(ctx, m, config, pathCertificate, renewal{Chain: text})
}

// ErrNoAuthority means that an invited operator cannot certify a machine.
var ErrNoAuthority = errors.New("the service's certificate authority is not on this machine; run this on the machine from which the service was deployed")

// certify returns a PEM chain for the key of a machine's certificate.
func (o *Client) certify(presented *x509.Certificate, n identity.Name) (chain string, err error) {
	if o.Authority == nil {
		return "", ErrNoAuthority
	}
	certs, err := o.Authority.Certify(presented.PublicKey, n, o.now(), identity.CertificateLife)
	return string(identity.EncodeChain(certs)), err
}

// presentedCertificate returns the certificate that a machine presents, which proves that it has the key.
func (o *Client) presentedCertificate(ctx context.Context, m Target, config *tls.Config) (*x509.Certificate, error) {
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

// CheckKey returns an *identity.PinError if a machine presents another key than the one with this fingerprint.
func (o *Client) CheckKey(ctx context.Context, m Target, fingerprint string) error {
	to := *o
	to.key = fingerprint
	_, err := to.presentedCertificate(ctx, m, o.Party.Pinned(fingerprint))
	return err
}

func (o *Client) dial(ctx context.Context, addr string) (net.Conn, error) {
	if o.Dial != nil {
		return o.Dial(ctx, addr, o.key)
	}
	return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", addr)
}

// Revoke sends a machine the revocation list. A machine with a newer list rejects it: a *StatusError
// with status 409.
func (o *Client) Revoke(ctx context.Context, m Target) error {
	return o.put(ctx, m, o.Party.To(m.Name), pathRevoked, revocation{List: string(o.Revoked.Text())})
}

// Status reads a machine's status; it returns identity.ErrUntrusted if the machine has no valid certificate.
func (o *Client) Status(ctx context.Context, m Target) (Status, error) {
	var s Status
	var body []byte
	var err error
	if o.Kept != nil {
		body, err = o.readKept(ctx, m)
	} else {
		body, err = o.do(ctx, m, o.Party.To(m.Name), http.MethodGet, pathStatus, nil)
	}
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	if err != nil {
		return s, fmt.Errorf("reading the status of %s: %w", m.Name.ID, err)
	}
	return s, nil
}

// readKept reads a machine's status over its kept connection. A relay may hang although the machine does not: without a
// response over an earlier connection after half of the time, another connection is opened.
func (o *Client) readKept(ctx context.Context, m Target) ([]byte, error) {
	transport, earlier := o.Kept.transport(o, m)
	half, cancel := ctx, context.CancelFunc(func() {})
	if end, limited := ctx.Deadline(); limited && earlier && o.Dial != nil {
		half, cancel = context.WithTimeout(ctx, time.Until(end)/2)
	}
	defer cancel()
	body, err := o.send(half, m, transport, http.MethodGet, pathStatus, nil)
	if err != nil && half.Err() != nil && ctx.Err() == nil {
		return o.do(ctx, m, o.Party.To(m.Name), http.MethodGet, pathStatus, nil)
	}
	return body, err
}

// Drain drains a machine: its proxy rejects new requests.
func (o *Client) Drain(ctx context.Context, m Target) error {
	_, err := o.do(ctx, m, o.Party.To(m.Name), http.MethodPost, pathDrain, nil)
	if err != nil {
		return fmt.Errorf("draining %s: %w", m.Name.ID, err)
	}
	return nil
}

// Logs returns the last lines of a unit's log.
func (o *Client) Logs(ctx context.Context, m Target, unit string, lines int) ([]byte, error) {
	text, err := o.do(ctx, m, o.Party.To(m.Name), http.MethodGet, pathLogs+url.PathEscape(unit)+"?lines="+strconv.Itoa(lines), nil)
	if err != nil {
		return nil, fmt.Errorf("reading the log of %s on %s: %w", unit, m.Name.ID, err)
	}
	return text, nil
}

// CallCloud calls the machine's cloud API through it and returns the response; call is the last element
// of the path. Only a controller may call it. ctx limits its duration.
func (o *Client) CallCloud(ctx context.Context, m Target, call string, body []byte) ([]byte, error) {
	text, err := o.exchange(ctx, m, o.Party.To(m.Name), http.MethodPost, pathCloud+url.PathEscape(call), body, 0)
	if err != nil {
		return nil, fmt.Errorf("calling the cloud API through %s: %w", m.Name.ID, err)
	}
	return text, nil
}

func (o *Client) put(ctx context.Context, m Target, config *tls.Config, path string, v any) error {
	body, err := json.Marshal(v)
	if err == nil {
		_, err = o.do(ctx, m, config, http.MethodPut, path, body)
	}
	if err != nil {
		return fmt.Errorf("PUT %s on %s: %w", path, m.Name.ID, err)
	}
	return nil
}

// StatusError is an error response of a machine.
type StatusError struct {
	Status  int
	Message string
}

// Error returns the HTTP status and the machine's message.
func (e *StatusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.Status, e.Message) }

// do performs one short request to a machine.
func (o *Client) do(ctx context.Context, m Target, config *tls.Config, method, path string, body []byte) ([]byte, error) {
	return o.exchange(ctx, m, config, method, path, body, requestTimeout)
}

// exchange performs a request on its own connection: requests other than for the status are rare, and certificates
// change. timeout is the timeout for the response header; 0 = limited by ctx.
func (o *Client) exchange(ctx context.Context, m Target, config *tls.Config, method, path string, body []byte, timeout time.Duration) ([]byte, error) {
	transport := o.newTransport(config, timeout)
	transport.DisableKeepAlives = true
	defer transport.CloseIdleConnections()
	return o.send(ctx, m, transport, method, path, body)
}

// newTransport returns a transport for requests to one machine. timeout is the timeout for the response header; 0 =
// none.
func (o *Client) newTransport(config *tls.Config, timeout time.Duration) *http.Transport {
	return &http.Transport{
		DialContext:     func(ctx context.Context, _, addr string) (net.Conn, error) { return o.dial(ctx, addr) },
		TLSClientConfig: config, TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: timeout,
	}
}

// send performs a request over a transport.
func (o *Client) send(ctx context.Context, m Target, transport *http.Transport, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "https://"+m.Address+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // the caller adds the name of the machine
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return nil, responseError(resp)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxBody))
}

// responseError returns an error response as an error.
func responseError(resp *http.Response) error {
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return err
	}
	_ = json.Unmarshal(text, &body) // other documents have no message
	return &StatusError{resp.StatusCode, body.Error.Message}
}
