package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestRemovedReplicaFinishesRequests(t *testing.T) {
	b := start(t, testOptions(t))
	begun, finish := make(chan struct{}), make(chan struct{})
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chunk("a"))
		_ = http.NewResponseController(w).Flush()
		close(begun)
		<-finish
		_, _ = io.WriteString(w, doneEvent)
	}))
	resp := b.post(chatPath, streamBody)
	<-begun
	if removed, err := b.RemoveReplica("us-0", 0); !removed || err != nil {
		t.Fatalf("removing: %v, %v", removed, err)
	}
	close(finish)
	if got := read(t, resp); got != chunk("a")+doneEvent {
		t.Errorf("got %q", got)
	}
	c := b.settled()
	lawful(t, c)
	if c.Finished != 1 {
		t.Errorf("counts %+v, want one finished", c)
	}
}

func TestDrain(t *testing.T) {
	b := start(t, testOptions(t))
	finish := make(chan struct{})
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		<-finish
		_, _ = io.WriteString(w, plainReply)
	}))
	if code, _ := b.get("/readyz"); code != http.StatusOK {
		t.Fatalf("readyz %d before draining", code)
	}
	answered := make(chan string)
	go func() { answered <- read(t, b.post(chatPath, plainBody)) }()
	b.until(func() bool { return b.View().Counts.Outstanding == 1 })
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.Drain(gone); err == nil || !strings.Contains(err.Error(), "1 request still") {
		t.Errorf("draining without time: %v", err)
	}
	if code, why := b.get("/readyz"); code != http.StatusServiceUnavailable || why != "shutting down\n" {
		t.Errorf("readyz %d %q while draining", code, why)
	}
	if code, _ := b.get("/healthz"); code != http.StatusOK {
		t.Errorf("healthz %d while draining", code)
	}
	expect(t, b.post(chatPath, plainBody), http.StatusServiceUnavailable, "draining")
	drained := make(chan error)
	go func() { drained <- b.Drain(context.Background()) }()
	close(finish)
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if got := <-answered; got != plainReply {
		t.Errorf("the request in flight got %q", got)
	}
}

// A client that stops reading must not block an engine forever.
func TestClientStopsReading(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	o.Limits.StallTimeout = 500 * time.Millisecond // enough for a first write on a busy machine
	b := start(t, o)
	left := make(chan struct{})
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		big := chunk(strings.Repeat("x", 1<<16))
		for req.Context().Err() == nil {
			if _, err := io.WriteString(w, big); err != nil {
				break
			}
		}
		close(left)
	}))
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(streamBody), streamBody)
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	<-left
	c := b.settled()
	lawful(t, c)
	if c.Cancelled != 1 {
		t.Errorf("counts %+v, want one cancelled", c)
	}
}

// An idle connection that its engine closed does not count as a failed attempt.
func TestIdleConnectionClosedByEngine(t *testing.T) {
	srv := httptest.NewServer(whole(plainReply))
	t.Cleanup(srv.Close)
	b := start(t, testOptions(t))
	b.attach("us-0", srv.URL)
	for i := range 20 {
		id := fmt.Sprintf("r%d", i)
		expect(t, b.post(chatPath, plainBody, "X-Request-ID: "+id), http.StatusOK, "")
		b.settled()
		if d, _ := b.Decision(id); len(d.Attempts) != 1 {
			t.Fatalf("request %d took the attempts %+v", i, d.Attempts)
		}
		srv.CloseClientConnections()
	}
}
