//go:build compare && linux

package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// rival is a kind of proxy in the comparison.
type rival struct {
	name  string
	start func(ctx context.Context, t *testing.T, engines []string, streams int) contender
}

// contender is a running rival.
type contender struct {
	*group
	address string
	admin   string // skyserve's admin address
}

// rivals are in the order of each round; the others are measured relative to the first.
func rivals() []rival {
	return []rival{
		{"nginx", startNginx},
		{"haproxy", startHaproxy},
		{"skyserve", startSkyserve("cost")},
		{"skyserve round-robin", startSkyserve("round-robin")},
	}
}

// nginxConfig: one worker per core, as skyserve has a thread per core; connections to the engine are
// kept open, events are not buffered, nothing is logged.
const nginxConfig = `worker_processes %[1]d;
worker_rlimit_nofile %[2]d;
pid nginx.pid;
daemon off;
error_log stderr warn;
events { worker_connections %[2]d; }
http {
	access_log off;
	client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
	keepalive_requests 100000000;
	upstream engine {
%[3]s		keepalive 1024;
		keepalive_requests 100000000;
	}
	server {
		listen %[4]s reuseport backlog=4096;
		location / {
			proxy_pass http://engine;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_buffering off;
			proxy_read_timeout 10m;
		}
	}
}
`

func startNginx(ctx context.Context, t *testing.T, engines []string, streams int) contender {
	dir, address := t.TempDir(), freeAddress(t)
	config := writeConfig(t, dir, nginxConfig, runtime.NumCPU(), 2*streams+1024, each("\t\tserver %s;\n", engines), address)
	return await(t, contender{
		group:   startGroup(ctx, t, syscall.SIGTERM, os.Environ(), "nginx", "nginx", "-p", dir, "-e", "stderr", "-c", config),
		address: address,
	})
}

// haproxyConfig: one thread per core; connections to the engine are kept open and shared, events are
// not buffered, nothing is logged.
const haproxyConfig = `global
	nbthread %[1]d
	maxconn %[2]d
defaults
	mode http
	no option http-server-close
	option http-no-delay
	http-reuse always
	timeout connect 5s
	timeout client 10m
	timeout server 10m
frontend public
	bind %[4]s backlog 4096
	maxconn %[2]d
	default_backend engine
backend engine
	balance roundrobin
%[3]s`

func startHaproxy(ctx context.Context, t *testing.T, engines []string, streams int) contender {
	dir, address := t.TempDir(), freeAddress(t)
	config := writeConfig(t, dir, haproxyConfig, runtime.NumCPU(), streams+256, numbered("\tserver replica%d %s\n", engines), address)
	return await(t, contender{
		group:   startGroup(ctx, t, syscall.SIGKILL, os.Environ(), "haproxy", "haproxy", "-db", "-f", config),
		address: address,
	})
}

// startSkyserve starts a balancer with defaults for everything but its addresses and policy.
func startSkyserve(policy string) func(context.Context, *testing.T, []string, int) contender {
	return func(ctx context.Context, t *testing.T, engines []string, _ int) contender {
		binary, err := filepath.Abs(*binaryFlag)
		if err != nil {
			t.Fatal(err)
		}
		address, admin := freeAddress(t), freeAddress(t)
		args := []string{"lb", "--region", "here", "--policy", policy, "--log-level", "warn", "--listen", address, "--admin", admin}
		for _, e := range engines {
			args = append(args, "--replica", "http://"+e)
		}
		return await(t, contender{
			group:   startGroup(ctx, t, syscall.SIGKILL, plainEnvironment(t), "skyserve", binary, args...),
			address: address, admin: admin,
		})
	}
}

// plainEnvironment returns the environment without variables that affect skyserve, and with a separate
// state directory.
func plainEnvironment(t *testing.T) []string {
	environ := []string{"SKYSERVE_HOME=" + t.TempDir()}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "SKYSERVE_") && !strings.HasPrefix(v, "GOMAXPROCS=") && !strings.HasPrefix(v, "GOGC=") && !strings.HasPrefix(v, "GOMEMLIMIT=") {
			environ = append(environ, v)
		}
	}
	return environ
}

// await waits until the proxy has served each replica's share of requests.
func await(t *testing.T, c contender) contender {
	t.Helper()
	var err error
	ready := within(timeout, func() bool {
		err = answers(c.address)
		return err == nil || isClosed(c.exited)
	})
	if !ready || err != nil {
		t.Fatalf("waiting for %s on %s: %v: %s", c.name, c.address, err, c.lastWords())
	}
	return c
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// answers sends one request over a new connection and reports whether it succeeds.
func answers(address string) error {
	u := newUser(&clientJob{Address: address, Seed: 0xffff}, 0)
	if err := u.dial(); err != nil {
		return err
	}
	defer u.conn.Close()
	return u.ask(nil)
}

// freeAddress returns an unused address on this machine.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func writeConfig(t *testing.T, dir, format string, args ...any) string {
	t.Helper()
	path := filepath.Join(dir, "proxy.conf")
	if err := os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func each(format string, values []string) string {
	var b strings.Builder
	for _, v := range values {
		fmt.Fprintf(&b, format, v)
	}
	return b.String()
}

func numbered(format string, values []string) string {
	var b strings.Builder
	for i, v := range values {
		fmt.Fprintf(&b, format, i, v)
	}
	return b.String()
}

// needPrograms fails if a program of the comparison is missing.
func needPrograms(t *testing.T) {
	t.Helper()
	for _, name := range []string{"nginx", "haproxy"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("comparing with %s: %v\nhint: install it (apt-get install nginx-light haproxy) and see that its folder is in PATH", name, err)
		}
	}
	if _, err := os.Stat(*binaryFlag); err != nil {
		t.Fatalf("comparing skyserve: %v\nhint: make build, or -binary FILE", err)
	}
}

// saveProfile requests a profile from skyserve and writes it to a file; query is the path after
// /debug/pprof/, length is the duration of the profile.
func (c contender) saveProfile(query string, length time.Duration, path string) error {
	conn, err := net.Dial("tcp", c.admin)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(length + answerTimeout)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "GET /debug/pprof/%s HTTP/1.0\r\nHost: %s\r\n\r\n", query, c.admin); err != nil {
		return err
	}
	in := bufio.NewReaderSize(conn, maxLine)
	h, err := readHead(in)
	if err != nil {
		return err
	}
	page, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	if !strings.Contains(h.first, " 200 ") {
		return fmt.Errorf("getting the profile %s: %s: %s", query, h.first, page)
	}
	return os.WriteFile(path, page, 0o644)
}
