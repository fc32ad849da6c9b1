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

// maxRelayDuration bounds one relayed connection: an exchange with an agent takes seconds.
const maxRelayDuration = 5 * time.Minute

// headerKey is the fingerprint of the key that a machine must show which is not enrolled
// yet, or whose certificate ended, for a relay to lead there.
const headerKey = "Skyserve-Key"

// serveRelay connects an operator or the controller to the agent of another machine, which
// lets nobody in but balancers' machines. What passes is TLS between the two; the relay
// sees none of it. Only the agents' own port is relayed to, only by balancers, and only
// where a machine of the service answers, or the one with the key that was named.
func (a *Agent) serveRelay(w http.ResponseWriter, r *http.Request) {
	_, own, _ := net.SplitHostPort(a.opts.Listen)
	_, port, err := net.SplitHostPort(r.Host)
	switch {
	case a.opts.Name.Role != identity.Balancer:
		writeError(w, http.StatusForbidden, fmt.Errorf("relaying to %s: this is a %s, and only balancers relay", r.Host, a.opts.Name.Role))
		return
	case a.enrolled() == nil:
		writeError(w, http.StatusConflict, errNotEnrolled)
		return
	case err != nil || port != own:
		writeError(w, http.StatusForbidden, fmt.Errorf("relaying to %s: want another agent, on port %s", r.Host, own))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), maxRelayDuration)
	defer cancel()
	to, status, err := a.dialVerified(ctx, r.Host, r.Header.Get(headerKey))
	if err != nil {
		writeError(w, status, fmt.Errorf("relaying to %s: %w", r.Host, err))
		return
	}
	defer to.Close()
	from, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		writeError(w, http.StatusInternalServerError, fmt.Errorf("relaying to %s: %w", r.Host, err))
		return
	}
	defer from.Close()
	_ = from.SetDeadline(time.Time{}) // the server's was for a request; a dead connection shows below
	if _, err := io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return // who asked has gone
	}
	copyBetween(ctx, to, from, buffered.Reader)
}

// dialVerified connects to a machine once it has shown, over a connection before, that it is one
// of the service, or has the key with a fingerprint. status is what to answer otherwise.
func (a *Agent) dialVerified(ctx context.Context, addr, fingerprint string) (conn net.Conn, status int, err error) {
	config := a.enrolled().Client(identity.Balancer, identity.Replica)
	if fingerprint != "" {
		config = a.enrolled().Pinned(fingerprint)
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	shown, err := (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", addr)
	switch {
	case errors.Is(err, identity.ErrUntrusted), errors.Is(err, identity.ErrRevoked), errors.Is(err, identity.ErrRole), errors.Is(err, identity.ErrPin):
		return nil, http.StatusMisdirectedRequest, err
	case err != nil:
		return nil, http.StatusBadGateway, err
	}
	shown.Close()
	conn, err = dialer.DialContext(ctx, "tcp", addr)
	return conn, http.StatusBadGateway, err
}

// copyBetween copies between two connections until one side ends, or ctx.
func copyBetween(ctx context.Context, to, from net.Conn, fromReader io.Reader) {
	end := sync.OnceFunc(func() {
		to.Close()
		from.Close()
	})
	defer context.AfterFunc(ctx, end)()
	var both sync.WaitGroup
	copied := func(w io.Writer, r io.Reader) {
		_, _ = io.Copy(w, r) // how it ended is for the two ends to say
		end()
	}
	both.Go(func() { copied(to, fromReader) })
	both.Go(func() { copied(from, to) })
	both.Wait()
}

// Through is a Dial that goes by way of a balancer's machine: to replicas, which let
// only those in. Errors include identity.ErrUntrusted and identity.ErrPin, as the balancer's
// machine found the other one.
func (o *Operator) Through(by Machine) func(ctx context.Context, addr, fingerprint string) (net.Conn, error) {
	return func(ctx context.Context, addr, fingerprint string) (net.Conn, error) {
		conn, err := o.dialRelayed(ctx, by, addr, fingerprint)
		var refusal *Refusal
		if errors.As(err, &refusal) && refusal.Status == http.StatusMisdirectedRequest {
			err = fmt.Errorf("%w: %s", identity.ErrUntrusted, refusal.Message)
			if fingerprint != "" {
				err = fmt.Errorf("%w: %s", identity.ErrPin, refusal.Message)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("going through %s: %w", by.Name.ID, err)
		}
		return conn, nil
	}
}

// dialRelayed asks the agent of a machine for a connection to another one.
func (o *Operator) dialRelayed(ctx context.Context, by Machine, addr, fingerprint string) (net.Conn, error) {
	nc, err := o.dial(ctx, by.Address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*dialTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	conn := tls.Client(nc, o.Party.To(by.Name))
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

// requestRelay asks for a relayed connection over one to the relay.
func requestRelay(conn net.Conn, addr, fingerprint string) error {
	req := &http.Request{Method: http.MethodConnect, Host: addr, URL: &url.URL{Host: addr}, Header: http.Header{}}
	if fingerprint != "" {
		req.Header.Set(headerKey, fingerprint)
	}
	if err := req.Write(conn); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK { // else what follows is no body, and closing it would wait for its end
		defer resp.Body.Close()
		return responseError(resp)
	}
	if r.Buffered() > 0 {
		return errors.New("the relay spoke before it was its turn") // in TLS the client does
	}
	return nil
}
