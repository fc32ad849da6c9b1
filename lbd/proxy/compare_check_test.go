//go:build compare && linux

package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
)

// zeroMark is the mark of the first request of a client's first connection.
var zeroMark = []byte(strings.Repeat("0", markDigits))

func eventText(i int) string { return string(appendEvent(nil, zeroMark, i)) }

// chunks writes pieces as chunks, without the last one.
func chunks(pieces ...string) string {
	var b strings.Builder
	for _, p := range pieces {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p), p)
	}
	return b.String()
}

func TestCompareProxyClientSeesDamage(t *testing.T) {
	const ok, chunked, end = "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "0\r\n\r\n"
	body := string(appendAnswer(nil, zeroMark))
	other := string(appendAnswer(nil, []byte("000000000000000f")))
	sized := func(s string) string { return fmt.Sprintf("%scontent-length: %d\r\n\r\n%s", ok, len(s), s) }
	cases := []struct {
		name, answer string
		stream       bool
		want         string // part of the error; "" = none
	}{
		{"whole", sized(body), false, ""},
		{"whole, in chunks", chunked + chunks(body[:9], body[9:]) + end, false, ""},
		{"another request's", sized(other), false, "want the answer"},
		{"a missing byte", sized(body[:len(body)-1]), false, "want the answer"},
		{"cut off", sized(body)[:200], false, "unexpected EOF"},
		{"another status", "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", false, "want status 200"},
		{"no length", ok + "\r\n" + body, false, "got neither"},
		{"an invalid length", ok + "Content-Length: -1\r\n\r\n", false, "want a whole number"},
		{"a field without a value", ok + "Content-Length\r\n\r\n", false, "want NAME: VALUE"},
		{"a field without an end", ok + "X: " + strings.Repeat("x", 2*maxLine), false, "longer than"},
		{"nothing", "", false, "EOF"},

		{"stream", chunked + chunks(eventText(0), eventText(1), doneText) + end, true, ""},
		{"stream in other pieces", chunked + chunks(eventText(0)[:20], eventText(0)[20:]+eventText(1)+doneText) + end, true, ""},
		{"a missing event", chunked + chunks(eventText(0), doneText) + end, true, "want 2 events, got 1"},
		{"an extra event", chunked + chunks(eventText(0), eventText(1), eventText(2), doneText) + end, true, "want 2 events, got 3"},
		{"events in another order", chunked + chunks(eventText(1), eventText(0), doneText) + end, true, "after event 0"},
		{"an unrequested usage", chunked + chunks(eventText(0), eventText(1), usageText, doneText) + end, true, "after event 2"},
		{"no [DONE]", chunked + chunks(eventText(0), eventText(1)) + end, true, "after event 2"},
		{"more than [DONE]", chunked + chunks(eventText(0), eventText(1), doneText, "x") + end, true, "after event 2"},
		{"no end", chunked + chunks(eventText(0), eventText(1), doneText), true, "reading a chunk"},
		{"a chunk without a size", chunked + "x\r\n", true, "want its size"},
		{"a chunk longer than its size", chunked + "3\r\nabcd\r\n", true, "want its end"},
		{"not in chunks", sized(eventText(0)), true, "want a stream in chunks"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := askDamaged(&clientJob{Stream: c.stream, Events: 2}, c.answer)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// askDamaged sends a request to a server that always returns this response.
func askDamaged(job *clientJob, answer string) error {
	u := newUser(job, 0)
	conn, server := net.Pipe()
	u.conn, u.in = conn, bufio.NewReaderSize(conn, maxLine)
	defer conn.Close()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		defer server.Close()
		in := bufio.NewReaderSize(server, maxLine)
		if h, err := readHead(in); err == nil {
			_, _ = io.CopyN(io.Discard, in, int64(h.length))
			_, _ = io.WriteString(server, answer)
		}
	}()
	err := u.ask(nil)
	_ = conn.Close()
	<-answered
	return err
}

func TestCompareProxyRequestsShareWhatTurnsShare(t *testing.T) {
	text := requestText(&clientJob{}, 3)
	_, body, _ := strings.Cut(text, "\r\n\r\n")
	if len(body) != bodySize {
		t.Errorf("a body has %d bytes, want %d", len(body), bodySize)
	}
	if s := cut(body); len(s.gaps) != 2 || s.gaps[0] < systemSize || s.gaps[1]-s.gaps[0] < historySize {
		t.Errorf("gaps at %v: want the conversation's behind %d shared bytes, and the mark %d bytes later", s.gaps, systemSize, historySize)
	}
	if requestText(&clientJob{}, 4) == text {
		t.Error("two system prompts are the same")
	}
}

func TestCompareProxyStopsProcesses(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, how := range []string{"ended", "interrupted"} {
		g := startGroup(ctx, t, syscall.SIGTERM, os.Environ(), "sh", "sh", "-c", "sleep 1000 & echo; wait")
		if _, err := g.stdout.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if n := len(members(g.id)); n != 2 {
			t.Fatalf("%d processes, want the shell and what it started", n)
		}
		if how == "interrupted" {
			cancel()
			if !within(timeout, func() bool { return len(members(g.id)) == 0 }) {
				t.Error("interrupted: processes are still there")
			}
		}
		g.end(t)
		if left := members(g.id); len(left) > 0 {
			t.Errorf("%s: processes %v are still there", how, left)
		}
	}
}
