package testkit

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// echo serves lines back to a client, and returns its address. It closes a connection after "end".
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan() && lines.Text() != "end"; {
					fmt.Fprintln(c, lines.Text())
				}
			}()
		}
	}()
	return l.Addr().String()
}

// A connection through a proxy takes at least the round trips of a real one: one to open it, one for each exchange and
// half of one for its end, and it carries everything in order.
func TestProxyDelays(t *testing.T) {
	t.Parallel()
	const rtt = 40 * time.Millisecond
	network := &Network{Delay: func(from, to string) time.Duration {
		if from == "client" && to == "server" {
			return rtt
		}
		return 0
	}}
	p := NewProxy(t, "127.0.0.1:0", echo(t), "server", func(net.Addr, net.Addr) string { return "client" }, network)
	begin := time.Now()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lines := bufio.NewReader(c)
	const exchanges = 5
	for i := range exchanges {
		fmt.Fprintln(c, i)
		if got, err := lines.ReadString('\n'); err != nil || got != fmt.Sprintln(i) {
			t.Fatalf("exchange %d: %q, %v", i, got, err)
		}
	}
	fmt.Fprintln(c, "end")
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
	if took, want := time.Since(begin), (1+exchanges+1)*rtt; took < want {
		t.Errorf("%d exchanges took %s, want at least %s", exchanges, took, want)
	}
}

// While the network between two ends is cut nothing arrives, between others everything does; after the cut all arrives.
func TestProxyCuts(t *testing.T) {
	t.Parallel()
	network, clients := &Network{}, make(chan string, 1)
	p := NewProxy(t, "127.0.0.1:0", echo(t), "server", func(net.Addr, net.Addr) string { return <-clients }, network)
	dial := func(name string) (net.Conn, *bufio.Reader) {
		clients <- name
		c, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c, bufio.NewReader(c)
	}
	exchange := func(c net.Conn, lines *bufio.Reader, text string) {
		t.Helper()
		fmt.Fprintln(c, text)
		if got, err := lines.ReadString('\n'); err != nil || got != text+"\n" {
			t.Fatalf("got %q, %v, want %s", got, err, text)
		}
	}
	a, fromA := dial("a")
	exchange(a, fromA, "a1")
	repair := network.Cut(func(from, to string) bool { return from == "a" && to == "server" })
	fmt.Fprintln(a, "a2")
	b, fromB := dial("b")
	exchange(b, fromB, "b1") // it was sent later, and arrives
	if err := a.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if got, err := fromA.ReadString('\n'); err == nil {
		t.Errorf("%q arrives through a network that is cut", got)
	}
	if err := a.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	repair()
	if got, err := fromA.ReadString('\n'); err != nil || got != "a2\n" {
		t.Errorf("after the repair: %q, %v", got, err)
	}
}

// A client of a target that does not listen learns it.
func TestProxyWithoutTarget(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, "127.0.0.1:0", FreeAddr(), "server", func(net.Addr, net.Addr) string { return "client" }, &Network{})
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.ReadAll(c); len(got) > 0 {
		t.Errorf("got %q, %v", got, err)
	}
}
