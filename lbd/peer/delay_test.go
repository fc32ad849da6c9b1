package peer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const rtt = 200 * time.Millisecond

// distant runs a test with fake time, a connection with that round trip, and the undelayed
// connection at its other end.
func distant(t *testing.T, test func(t *testing.T, near, far net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		near := newDistantConn(a, rtt/2)
		test(t, near, b)
		near.Close()
		b.Close()
		time.Sleep(rtt + lingerTime) // the goroutines that copy bytes have ended by then
	})
}

func TestBytesTakeHalfARoundTrip(t *testing.T) {
	distant(t, func(t *testing.T, near, far net.Conn) {
		began := time.Now()
		if _, err := near.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("Write waited %s", took)
		}
		got := make([]byte, 10)
		n, err := far.Read(got)
		if err != nil || string(got[:n]) != "ping" || time.Since(began) != rtt/2 {
			t.Errorf("far side got %q, %v after %s", got[:n], err, time.Since(began))
		}
		if _, err := far.Write([]byte("pong")); err != nil {
			t.Fatal(err)
		}
		n, err = near.Read(got)
		if err != nil || string(got[:n]) != "pong" || time.Since(began) != rtt {
			t.Errorf("near side got %q, %v after %s", got[:n], err, time.Since(began))
		}
	})
}

func TestBandwidthIsNotLimited(t *testing.T) {
	sent := make([]byte, trackBytes+trackBytes/4+777)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range sent {
		sent[i] = byte(r.Uint32())
	}
	distant(t, func(t *testing.T, near, far net.Conn) {
		began := time.Now()
		go func() {
			_, _ = far.Write(sent)
			far.Close()
		}()
		got, err := io.ReadAll(near)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("got %d bytes of %d, %v", len(got), len(sent), err)
		}
		if took := time.Since(began); took > 3*rtt/2 {
			t.Errorf("more than a track holds took %s, want two half round trips and the end", took)
		}
	})
	distant(t, func(t *testing.T, near, far net.Conn) {
		go func() {
			_, _ = near.Write(sent)
			near.Close()
		}()
		got, err := io.ReadAll(far)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("got %d bytes of %d, %v", len(got), len(sent), err)
		}
	})
}

func TestDeadlines(t *testing.T) {
	distant(t, func(t *testing.T, near, far net.Conn) {
		began := time.Now()
		_ = near.SetReadDeadline(began.Add(30 * time.Millisecond))
		_, err := near.Read(make([]byte, 1))
		var ne net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() || time.Since(began) != 30*time.Millisecond {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
		// A changed deadline wakes a waiting read.
		_ = near.SetDeadline(time.Time{})
		go func() {
			time.Sleep(time.Second)
			_ = near.SetDeadline(time.Unix(1, 0))
		}()
		if _, err = near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		// The write deadline applies once the track is full.
		_ = near.SetDeadline(time.Time{})
		_ = near.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := near.Write(make([]byte, trackBytes+2*pieceBytes))
		if !errors.Is(err, os.ErrDeadlineExceeded) || n < trackBytes {
			t.Errorf("wrote %d, %v", n, err)
		}
	})
}

func TestCloseDeliversWhatWasWritten(t *testing.T) {
	distant(t, func(t *testing.T, near, far net.Conn) {
		began := time.Now()
		_, _ = near.Write([]byte("bye"))
		if err := near.Close(); err != nil {
			t.Error(err)
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read after Close: %v", err)
		}
		if _, err := near.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write after Close: %v", err)
		}
		if err := near.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("second Close: %v", err)
		}
		got, err := io.ReadAll(far)
		if string(got) != "bye" || err != nil || time.Since(began) != rtt/2 {
			t.Errorf("far side got %q, %v after %s", got, err, time.Since(began))
		}
	})
}

func TestCloseWakesRead(t *testing.T) {
	distant(t, func(t *testing.T, near, far net.Conn) {
		go func() {
			time.Sleep(time.Second)
			near.Close()
		}()
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}

func TestFarSideNeverReads(t *testing.T) {
	// The delivering goroutine ends: otherwise synctest fails the test.
	distant(t, func(t *testing.T, near, far net.Conn) {
		_, _ = near.Write(make([]byte, 1<<20))
		near.Close()
		time.Sleep(lingerTime + rtt)
	})
}

func TestFarSideGone(t *testing.T) {
	distant(t, func(t *testing.T, near, far net.Conn) {
		far.Close()
		if _, err := near.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("Read: %v, want an end of file", err)
		}
		_, _ = near.Write([]byte("lost"))
		time.Sleep(rtt)
		if _, err := near.Write([]byte("lost")); err == nil {
			t.Error("Write to nobody: no error")
		}
	})
}

func TestHalfClose(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		far, err := ln.Accept()
		if err != nil {
			return
		}
		defer far.Close()
		got, _ := io.ReadAll(far) // ends at the half close
		_, _ = far.Write(append([]byte("heard "), got...))
	}()
	dial := distantDial((&net.Dialer{}).DialContext, 20*time.Millisecond)
	near, err := dial(context.Background(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = near.Write([]byte("this"))
	_ = near.(*distantConn).CloseWrite()
	if _, err := near.Write([]byte("x")); err == nil {
		t.Error("Write after CloseWrite: no error")
	}
	got, err := io.ReadAll(near)
	if err != nil || string(got) != "heard this" {
		t.Errorf("got %q, %v", got, err)
	}
	near.Close()
}

func TestSetUpTakesARoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := map[string]error{"open": nil, "refused": errors.New("refused")}
		dial := distantDial(func(_ context.Context, _, addr string) (net.Conn, error) {
			if err := answers[addr]; err != nil {
				return nil, err
			}
			a, b := net.Pipe()
			b.Close()
			return a, nil
		}, rtt)
		for addr, want := range answers {
			began := time.Now()
			conn, err := dial(context.Background(), "tcp", addr)
			if !errors.Is(err, want) || time.Since(began) != rtt {
				t.Errorf("%s: %v after %s, want %v after %s", addr, err, time.Since(began), want, rtt)
			}
			if conn != nil {
				conn.Close()
			}
		}
		time.Sleep(rtt)
		ctx, cancel := context.WithTimeout(context.Background(), rtt/4)
		defer cancel()
		if _, err := dial(ctx, "tcp", "open"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
	})
}

func TestTransportAddsTheDistance(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	}))
	defer srv.Close()
	const far = 60 * time.Millisecond
	hc := &http.Client{Transport: NewTransport(far, nil)}
	defer hc.CloseIdleConnections()
	body := bytes.Repeat([]byte("x"), 100<<10)
	for i, least := range []time.Duration{2 * far, far} { // the first request opens the connection
		began := time.Now()
		res, err := hc.Post(srv.URL, "text/plain", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("got %d bytes of %d, %v", len(got), len(body), err)
		}
		if took := time.Since(began); took < least {
			t.Errorf("request %d took %s, less than the distance allows (%s)", i, took, least)
		}
	}
}
