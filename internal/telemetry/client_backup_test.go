package telemetry_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// respondAfter returns the client of a server that responds that long after it has read the request.
func respondAfter(t *testing.T, delay time.Duration, response string) *telemetry.Client {
	l := testkit.NewPipes()
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return // the client has gone
		}
		select {
		case <-time.After(delay):
			io.WriteString(w, response)
		case <-r.Context().Done():
		}
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	hc := telemetry.SecureClient(nil)
	transport := hc.Transport.(*http.Transport)
	transport.DialContext = l.Dial
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = srv.Close()
		<-done
	})
	return telemetry.NewClient("http://lb.test", hc)
}

func TestRestoreTakesAsLongAsItNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := respondAfter(t, 10*time.Minute, `{"service":"chat","messages":3}`)
		b, err := c.Restore(t.Context(), strings.NewReader("backup"), true)
		if err != nil || b.Service != "chat" {
			t.Errorf("got %+v and %v", b, err)
		}
	})
}

func TestBackupThatDoesNotBeginIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := respondAfter(t, time.Hour, "")
		begin := time.Now()
		err := c.Backup(t.Context(), io.Discard)
		if err == nil || err.Error() != "GET http://lb.test/v1/store/backup: no response within 10s" {
			t.Errorf("got %v", err)
		}
		if got := time.Since(begin); got != 10*time.Second {
			t.Errorf("reported after %v", got)
		}
	})
}

func TestBackupTakesAsLongAsItNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := respondAfter(t, 9*time.Second, strings.Repeat("x", 1<<20))
		if err := l.Backup(t.Context(), slowWriter{}); err != nil {
			t.Error(err)
		}
	})
}

// slowWriter needs a minute for each write.
type slowWriter struct{}

func (slowWriter) Write(p []byte) (int, error) {
	time.Sleep(time.Minute)
	return len(p), nil
}
