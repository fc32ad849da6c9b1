package wire

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// maxRefusal is the maximum length of a proxy's error in a message.
const maxRefusal = 512

// DialThrough returns a Dial function that connects through an HTTP proxy: it opens a connection to proxy
// (HOST:PORT) with dial and requests, by the method CONNECT, one from there to the address. A response other
// than 200 is an error with its status and text.
func DialThrough(dial DialFunc, proxy string) DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := dial(ctx, network, proxy)
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) }) // ends the exchange
		conn, err := connect(nc, addr)
		if !stop() {
			err = context.Cause(ctx)
		}
		if err != nil {
			nc.Close()
			return nil, fmt.Errorf("connecting to %s through %s: %w", addr, proxy, err)
		}
		return conn, nil
	}
}

// connect requests a connection to addr from the proxy at the other end of nc.
func connect(nc net.Conn, addr string) (net.Conn, error) {
	req := &http.Request{Method: http.MethodConnect, Host: addr, URL: &url.URL{Host: addr}, Header: http.Header{}}
	if err := req.Write(nc); err != nil {
		return nil, err
	}
	r := bufio.NewReader(nc)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return &tunnel{Conn: nc, buffered: r}, nil
}

// tunnel is a connection through a proxy, whose first bytes may have arrived with the proxy's response.
type tunnel struct {
	net.Conn
	buffered *bufio.Reader
}

// Read reads the bytes that arrived with the proxy's response before further ones.
func (t *tunnel) Read(p []byte) (int, error) { return t.buffered.Read(p) }
