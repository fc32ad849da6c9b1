package deploy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

const (
	// envAgents is the folder of the service's authority for the process that serveAgents runs in.
	envAgents       = "SKYSERVE_TEST_AGENTS"
	leaderBalancers = 30
	leaderReplicas  = 1000
)

// leaderMachines returns the machines of a service in clouds, with 30 balancers and 1,000 replicas. Balancers listen on loopback.
func leaderMachines() (all []provision.Object) {
	add := func(kind provision.ObjectKind, id string, region int, public, private string) {
		o := provision.Object{Kind: kind, ID: id, Service: "chat", Region: service.Region(fmt.Sprintf("aws/r-%d", region)), PrivateIP: netip.MustParseAddr(private)}
		if public != "" {
			o.PublicIP = netip.MustParseAddr(public)
		}
		all = append(all, o)
	}
	for i := range leaderBalancers {
		add(provision.KindBalancer, fmt.Sprintf("lb-r-%d-0", i), i, fmt.Sprintf("127.77.0.%d", i+1), fmt.Sprintf("127.77.0.%d", i+1))
	}
	for i := range leaderReplicas {
		add(provision.KindReplica, fmt.Sprintf("r-%d-%d", i%leaderBalancers, i/leaderBalancers), i%leaderBalancers, "", fmt.Sprintf("10.0.%d.%d", i/250, i%250+1))
	}
	return all
}

// acceptedConns is a listener of connections that were opened otherwise.
type acceptedConns chan net.Conn

func (l acceptedConns) Accept() (net.Conn, error) { return <-l, nil }
func (l acceptedConns) Close() error              { return nil }
func (l acceptedConns) Addr() net.Addr            { return &net.TCPAddr{} }

// serveAgents serves the agents of leaderMachines, those of replicas through the relays of balancers, until its input ends.
func serveAgents(dir string) error {
	authority, err := identity.Home{Dir: dir}.Authority()
	if err != nil {
		return err
	}
	key, err := identity.NewKey()
	if err != nil {
		return err
	}
	configs, relayed := map[string]*tls.Config{}, make(acceptedConns)
	gpus, used := 1, 0.5
	respond := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect {
			config := configs[r.Host]
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil && config != nil {
				_ = conn.SetDeadline(time.Time{})
				_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
			}
			if err != nil || config == nil {
				fmt.Fprintln(os.Stderr, "relaying to", r.Host, err)
				return
			}
			relayed <- tls.Server(conn, config)
			return
		}
		_ = json.NewEncoder(w).Encode(agent.Status{
			Name: "skyserve://replica.chat/r-0-0", Phase: agent.PhaseReady, Enrolled: true, Revision: strings.Repeat("a", 64),
			Units: []agent.UnitStatus{{Name: "engine"}}, Expires: time.Now().Add(time.Hour), GPUs: &gpus,
			GPUStats: []telemetry.GPUFigures{{Utilisation: &used}}, Version: "0.33.0", Start: &telemetry.Start{StartedAt: time.Now(), Seconds: 61, Ready: true},
		})
	})
	srv := &http.Server{Handler: respond, ReadHeaderTimeout: time.Minute}
	go func() { _ = srv.Serve(relayed) }()
	for _, m := range leaderMachines() {
		role := identity.Replica
		if m.Kind == provision.KindBalancer {
			role = identity.Balancer
		}
		chain, err := authority.Certify(key.Public(), identity.Name{Service: "chat", Role: role, ID: m.ID}, time.Now(), time.Hour)
		if err != nil {
			return err
		}
		config := identity.NewParty(chain, key).Server(identity.Operator, identity.Controller)
		address := cloud.EndpointsOf(m).Listen.Agent
		if role == identity.Replica {
			configs[address] = config
			continue
		}
		ln, err := tls.Listen("tcp", address, config)
		if err != nil {
			return err
		}
		go func() { _ = srv.Serve(ln) }()
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// startAgents runs serveAgents in a process of its own.
func startAgents(b *testing.B, dir string) {
	b.Helper()
	out := testkit.Rerun(b, envAgents+"="+dir)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		b.Fatalf("the process of the agents: %q, %v", line, err)
	}
}

// processTime returns the processor time of this process.
func processTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The cost for the leader of reading the status of 1,000 replicas in clouds, through the relays of 30 balancers, and of
// the balancers themselves, over mTLS. The agents run in another process. Statuses are read every 5 s, connections are opened
// every 5 to 10 minutes; the sum of both is the share of a core.
func BenchmarkLeaderReadsAgents(b *testing.B) {
	dir := b.TempDir()
	authority, err := identity.Home{Dir: dir}.Create("chat", time.Now())
	if err != nil {
		b.Fatal(err)
	}
	key, err := identity.NewKey()
	if err != nil {
		b.Fatal(err)
	}
	chain, err := authority.Certify(key.Public(), identity.Name{Service: "chat", Role: identity.Controller, ID: "x"}, time.Now(), time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	startAgents(b, dir)
	newDelivery := func() *deploy.Delivery {
		return &deploy.Delivery{Service: "chat", Party: identity.NewParty(chain, key), Machines: leaderMachines()}
	}
	// read reads all statuses: once, or like the control loop again for agents that did not respond in time.
	read := func(b *testing.B, dl *deploy.Delivery, tries int) {
		for try := 1; ; try++ {
			seen, failed := dl.ReadStatuses(context.Background()), 0
			for _, s := range seen {
				if s.Err != nil {
					failed, err = failed+1, s.Err
				}
			}
			if len(seen) == leaderBalancers+leaderReplicas && failed == 0 {
				return
			}
			if try == tries {
				b.Fatalf("%d statuses, %d errors such as %v", len(seen), failed, err)
			}
		}
	}
	b.Run("opening", func(b *testing.B) {
		start := processTime(b)
		for b.Loop() {
			dl := newDelivery()
			read(b, dl, 5)
			dl.CloseConnections()
		}
		b.ReportMetric(100*(processTime(b)-start).Seconds()/float64(b.N)/(450*time.Second).Seconds(), "%core")
	})
	b.Run("reading", func(b *testing.B) {
		dl := newDelivery()
		defer dl.CloseConnections()
		read(b, dl, 5)
		start := processTime(b)
		for b.Loop() {
			read(b, dl, 1)
		}
		b.ReportMetric(100*(processTime(b)-start).Seconds()/float64(b.N)/(5*time.Second).Seconds(), "%core")
	})
}
