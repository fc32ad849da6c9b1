package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"skyserve/internal/acme/testca"
	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
)

const namedService = "chat.example.com"

// program returns the path of the command skyserve, a link in a directory of the test.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "skyserve")
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, path) // named skyserve, the test binary is the command: see TestMain
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// spread forwards each connection to the next address, as a DNS name with several records does.
func spread(t *testing.T, to ...string) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var next atomic.Int64
	var passing sync.WaitGroup
	pass := func(from net.Conn) {
		defer from.Close()
		conn, err := net.Dial("tcp", to[int(next.Add(1))%len(to)])
		if err != nil {
			return
		}
		var back sync.WaitGroup
		back.Go(func() { _, _ = io.Copy(from, conn); from.Close() })
		_, _ = io.Copy(conn, from)
		conn.Close()
		back.Wait()
	}
	passing.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			passing.Go(func() { pass(from) })
		}
	})
	t.Cleanup(func() { l.Close(); passing.Wait() })
	return l.Addr().(*net.TCPAddr).Port
}

// certificateAt returns the certificate that the server at an address presents for the name.
func certificateAt(addr string) (*x509.Certificate, error) {
	dialer := &tls.Dialer{Config: &tls.Config{ServerName: namedService, InsecureSkipVerify: true}} //nolint:gosec // the authority of a test
	conn, err := dialer.DialContext(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	leaf := conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
	return leaf, leaf.VerifyHostname(namedService)
}

// A service with static regions obtains a certificate, although the authority may reach another
// balancer than the one that requested it. A second up changes nothing.
func TestUpObtainsCertificate(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	t.Parallel()
	for _, challenge := range []string{service.ChallengeTLSALPN, service.ChallengeHTTP} {
		t.Run(challenge, func(t *testing.T) {
			t.Parallel()
			testObtainedCertificate(t, challenge, testkit.LocalPort())
		})
	}
}

func testObtainedCertificate(t *testing.T, challenge string, base int) {
	at := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/v1/models") {
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(engine.Close)
	names := at(base + 19)
	ca := testca.Start(t, testca.Options{
		TLSPort: spread(t, at(base), at(base+1)), HTTPPort: spread(t, at(base+400), at(base+401)), Resolver: names,
	})
	dir := t.TempDir()
	root, file := filepath.Join(dir, "root.pem"), filepath.Join(dir, "service.yaml")
	text := fmt.Sprintf(`
name: chat
models: [{name: m, engine: {kind: openai}}]
regions:
  - {name: static/paris, endpoints: ["%s"], public: ["https://%s"]}
  - {name: static/tokyo, endpoints: ["%s/x"], replicas: {min: 0}, public: ["https://%s"]}
balancer:
  tls: {acme: {email: ops@example.com, ca: "%s", root: %s, challenge: %s}}
dns: {provider: embedded, name: %s, zone: example.com, listen: "%s"}
local: {port: %d}
`, engine.URL, at(base), engine.URL, at(base+1), ca.URL, root, challenge, namedService, names, base)
	for path, content := range map[string]string{root: string(ca.Root), file: text} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	skyserve, home := program(t), filepath.Join(dir, "home")
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(skyserve, args...)
		cmd.Env = append(os.Environ(), "SKYSERVE_HOME="+home)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("skyserve %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	t.Cleanup(func() { run("down", "chat") })
	out := run("up", file)
	first, err := certificateAt(at(base))
	if err != nil {
		t.Fatalf("no certificate: %v\n%s", err, out)
	}
	second, err := certificateAt(at(base + 1))
	if err != nil || !second.Equal(first) || ca.Orders() != 1 {
		t.Errorf("%d orders; the other balancer has the same certificate: %v, %v\n%s", ca.Orders(), err == nil && second.Equal(first), err, out)
	}
	if out := run("up", file); !strings.Contains(out, "no change") {
		t.Errorf("up again:\n%s", out)
	}
	if out := run("status", "chat"); strings.Contains(out, "waiting for certificate") || !strings.Contains(out, "https://"+at(base)) {
		t.Errorf("status:\n%s", out)
	}
}

// Balancers at AWS write the record of a challenge into Route 53. A balancer in another cloud uses
// the certificate that they obtain.
func TestLbObtainsCertificateByDNSChallenge(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	route53 := testcloud.NewRoute53(&testcloud.Faults{})
	zone := route53.AddZone("example.com", false)
	amazon := httptest.NewServer(route53.Handler())
	t.Cleanup(amazon.Close)
	names := testca.Serve(t, "example.com", func(name string) (values []string) {
		for _, s := range route53.RecordSets(zone) {
			if s.Type == "TXT" && strings.TrimSuffix(s.Name, ".") == name {
				for _, v := range s.ResourceRecords.ResourceRecord {
					values = append(values, strings.Trim(v.Value, `"`))
				}
			}
		}
		return values
	})
	ca := testca.Start(t, testca.Options{Resolver: names.Addr})
	c := &cluster{t: t, program: program(t), dir: t.TempDir(), env: []string{
		"AWS_ACCESS_KEY_ID=AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY=secret", "AWS_EC2_METADATA_DISABLED=true",
	}}
	root := filepath.Join(c.dir, "root.pem")
	if err := os.WriteFile(root, ca.Root, 0o600); err != nil {
		t.Fatal(err)
	}
	store := c.free()
	c.start("controller", service.ControllerConfig{
		Service: "chat", Listen: c.free(), StoreListen: store, StoreDir: filepath.Join(c.dir, "store"),
		Balancers: []service.ControlledBalancer{}, Replicas: []service.ControlledReplica{},
	})
	var public []string
	for _, region := range []service.Region{"aws/us-east-1", "aws/eu-west-1", "gcp/us-central1"} {
		cfg := service.BalancerConfig{
			Service: "chat", ID: "lb-" + region.ShortName() + "-0", Region: region, Listen: c.free(), Admin: c.free(),
			StoreURL: "nats://" + store, PeerToken: "token",
			Certificate: &service.CertificateConfig{
				Name: namedService, Dir: filepath.Join(c.dir, "certificates-"+region.ShortName()), Zone: "example.com", ZoneID: zone, Endpoint: amazon.URL,
				FollowOnly: region.Cloud() != service.CloudAWS,
			},
		}
		cfg.Balancer.TLS = &service.TLS{ACME: &service.ACME{
			Email: "ops@example.com", CA: ca.URL, Root: root, Challenge: service.ChallengeDNS, Resolvers: []string{names.Addr},
		}}
		c.start("lb", cfg)
		public = append(public, cfg.Listen)
	}
	var first *x509.Certificate
	for _, addr := range public {
		within(t, "a certificate at "+addr, func() error {
			leaf, err := certificateAt(addr)
			if first == nil {
				first = leaf
			}
			if err == nil && !leaf.Equal(first) {
				err = errors.New("it is another one")
			}
			return err
		})
	}
	if ca.Orders() != 1 {
		t.Errorf("%d orders", ca.Orders())
	}
	within(t, "the record is gone", func() error {
		for _, s := range route53.RecordSets(zone) {
			if s.Type == "TXT" {
				return fmt.Errorf("%s remains", s.Name)
			}
		}
		return nil
	})
}

// A missing zone is reported before anything is launched, also if the name is not published yet.
func TestUpRejectsCertificateInMissingZone(t *testing.T) {
	t.Parallel()
	e := emulate(t)
	text := strings.NewReplacer("  insecure: true\n", "  tls: {acme: {email: ops@example.com}}\n", "chat.example.com, zone: example.com", "chat.example.org, zone: example.org").Replace(cloudService)
	if out := e.skyserve(exitUsage, append(e.upOf(text), "--yes")...); !strings.Contains(out, "finding the hosted zone example.org") || e.RunningAgents() != 0 {
		t.Errorf("%d machines run\n%s", e.RunningAgents(), out)
	}
}

// cluster runs processes of one service, started by hand.
type cluster struct {
	t       *testing.T
	program string
	dir     string
	env     []string
	started int

	port  int // the first one of the current block
	ports int // returned by free
}

// free returns an unused address, which no other test and no outgoing connection uses. A port that the kernel chooses can be
// chosen again before its process listens on it.
func (c *cluster) free() string {
	c.t.Helper()
	if c.ports%clusterPorts == 0 {
		c.port = testkit.LocalPort()
	}
	c.ports++
	return fmt.Sprintf("127.0.0.1:%d", c.port+(c.ports-1)%clusterPorts)
}

// clusterPorts is the number of ports of a service that are adjacent.
const clusterPorts = 20

// start runs a process with its configuration until the test ends.
func (c *cluster) start(verb string, config any) {
	c.t.Helper()
	text, err := yaml.Marshal(config)
	if err != nil {
		c.t.Fatal(err)
	}
	c.started++
	file := filepath.Join(c.dir, fmt.Sprintf("%s-%d.yaml", verb, c.started))
	if err := os.WriteFile(file, text, 0o600); err != nil {
		c.t.Fatal(err)
	}
	var log strings.Builder
	cmd := exec.Command(c.program, verb, "--config", file)
	cmd.Env, cmd.Stderr = append(os.Environ(), c.env...), &log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		if err := cmd.Wait(); err != nil || c.t.Failed() {
			c.t.Logf("%s: %v\n%s", filepath.Base(file), err, log.String())
		}
	})
}
