package agent

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"skyserve/internal/identity"
)

// maxRelayDuration limits one relayed connection: an exchange with an agent takes seconds.
const maxRelayDuration = 5 * time.Minute

// headerFingerprint is the header with the fingerprint of the key that the target machine must present.
// It is sent for a machine that is not enrolled yet or whose certificate has expired.
const headerFingerprint = "Skyserve-Key"

// serveRelay connects an operator or the controller to the agent of another machine. Firewalls allow
// connections to that agent only from machines of balancers. The relayed bytes are TLS between the
// two ends, which the relay cannot read. Only balancers relay, only to the agents' port, and only to
// a machine of the service or to one with the requested key.
func (a *Agent) serveRelay(w http.ResponseWriter, r *http.Request) {
	_, own, _ := net.SplitHostPort(a.opts.Listen)
	_, port, err := net.SplitHostPort(r.Host)
	switch {
	case a.opts.Name.Role != identity.Balancer:
		writeError(w, http.StatusForbidden, fmt.Errorf("relay to %s: the relay must be a balancer's machine, got %s (%s)", r.Host, a.opts.Name.ID, a.opts.Name.Role))
		return
	case a.currentCredentials() == nil:
		writeError(w, http.StatusConflict, errNotEnrolled)
		return
	case err != nil || port != own:
		writeError(w, http.StatusForbidden, fmt.Errorf("relay to %s: the target must be an agent on port %s", r.Host, own))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), maxRelayDuration)
	defer cancel()
	to, status, err := a.dialVerified(ctx, r.Host, r.Header.Get(headerFingerprint))
	if err != nil {
		writeError(w, status, fmt.Errorf("relay to %s: %w", r.Host, err))
		return
	}
	acceptConnect(ctx, w, to)
}

// acceptConnect responds to a CONNECT request, and copies between its client and to until one side closes or
// ctx ends. It closes to.
func acceptConnect(ctx context.Context, w http.ResponseWriter, to net.Conn) {
	defer to.Close()
	from, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		writeError(w, http.StatusInternalServerError, err)
		return
	}
	defer from.Close()
	_ = from.SetDeadline(time.Time{}) // the server's deadline is for one request; copying detects a dead connection
	if _, err := io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return // the client has disconnected
	}
	copyBetween(ctx, to, from, buffered.Reader)
}

// dialVerified connects to a machine after verifying, on a first connection, that it belongs to
// the service or has the key with the fingerprint. After an error, status is the HTTP status to
// return.
func (a *Agent) dialVerified(ctx context.Context, addr, fingerprint string) (conn net.Conn, status int, err error) {
	config := a.currentCredentials().Client(identity.Balancer, identity.Replica)
	if fingerprint != "" {
		config = a.currentCredentials().Pinned(fingerprint)
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	presented, err := (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", addr)
	switch {
	case errors.Is(err, identity.ErrUntrusted), errors.Is(err, identity.ErrRevoked), errors.Is(err, identity.ErrRole), errors.Is(err, identity.ErrPin):
		return nil, http.StatusMisdirectedRequest, err
	case err != nil:
		return nil, http.StatusBadGateway, err
	}
	presented.Close()
	conn, err = dialer.DialContext(ctx, "tcp", addr)
	return conn, http.StatusBadGateway, err
}

// copyBetween copies between two connections until one side closes or ctx ends.
func copyBetween(ctx context.Context, to, from net.Conn, fromReader io.Reader) {
	closeBoth := sync.OnceFunc(func() {
		to.Close()
		from.Close()
	})
	defer context.AfterFunc(ctx, closeBoth)()
	var copies sync.WaitGroup
	copyAndClose := func(w io.Writer, r io.Reader) {
		_, _ = io.Copy(w, r) // the two ends detect errors themselves
		closeBoth()
	}
	copies.Go(func() { copyAndClose(to, fromReader) })
	copies.Go(func() { copyAndClose(from, to) })
	copies.Wait()
}

// DialThrough returns a Dial function that connects through a balancer's machine: firewalls allow
// connections to replicas only from those. Errors include identity.ErrUntrusted and identity.ErrPin, as found
// by the balancer's machine.
func (o *Client) DialThrough(relay Target) func(ctx context.Context, addr, fingerprint string) (net.Conn, error) {
	return func(ctx context.Context, addr, fingerprint string) (net.Conn, error) {
		conn, err := o.dialRelayed(ctx, relay, addr, fingerprint)
		var refusal *StatusError
		if errors.As(err, &refusal) && refusal.Status == http.StatusMisdirectedRequest {
			err = fmt.Errorf("%w: %s", identity.ErrUntrusted, refusal.Message)
			if fingerprint != "" {
				err = fmt.Errorf("%w: %s", identity.ErrPin, refusal.Message)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("connecting through %s: %w", relay.Name.ID, err)
		}
		return conn, nil
	}
}

// dialRelayed requests a connection to another machine from the agent of a machine.
func (o *Client) dialRelayed(ctx context.Context, relay Target, addr, fingerprint string) (net.Conn, error) {
	nc, err := o.dial(ctx, relay.Address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*dialTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	conn := tls.Client(nc, o.Party.To(relay.Name))
	err = requestRelay(conn, addr, fingerprint)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return conn, nil
}

// requestRelay requests a relayed connection, on a connection to the relay.
func requestRelay(conn net.Conn, addr, fingerprint string) error {
	req := &http.Request{Method: http.MethodConnect, Host: addr, URL: &url.URL{Host: addr}, Header: http.Header{}}
	if fingerprint != "" {
		req.Header.Set(headerFingerprint, fingerprint)
	}
	if err := req.Write(conn); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK { // with 200, the stream follows: closing it as a body would wait for its end
		defer resp.Body.Close()
		return responseError(resp)
	}
	if r.Buffered() > 0 {
		return errors.New("the relay sent data before the client") // in TLS the client sends first
	}
	return nil
}
