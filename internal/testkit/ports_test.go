package testkit_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"skyserve/internal/testkit"
)

func TestLocalPortsDoNotCollide(t *testing.T) {
	const services, machines = 10, 20 // few: the tests of other packages need ports at the same time
	owner := map[int]int{}
	for service := range services {
		base := testkit.LocalPort()
		for kind := range 8 {
			for n := range machines {
				port := base + 100*kind + n
				if other, taken := owner[port]; taken {
					t.Fatalf("services %d and %d both have port %d", other, service, port)
				}
				owner[port] = service
			}
		}
	}
}

// Between two services of a test, its ports are free, and must not be those of another process's test.
func TestProcessesHaveDifferentPorts(t *testing.T) {
	const services, listeners = 5, 300
	take := func(use func(port string)) {
		for range services {
			use(strconv.Itoa(testkit.LocalPort()))
		}
		for range listeners {
			use(testkit.FreeAddr())
		}
	}
	if os.Getenv("SKYSERVE_TEST_PRINT_PORTS") != "" {
		take(func(port string) { fmt.Println(port) })
		return
	}
	ours := map[string]bool{}
	take(func(port string) { ours[port] = true })
	other := exec.Command(os.Args[0], "-test.run", "^TestProcessesHaveDifferentPorts$")
	other.Env = append(os.Environ(), "SKYSERVE_TEST_PRINT_PORTS=1")
	out, err := other.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ports := strings.Fields(string(out))
	if len(ports) < services+listeners {
		t.Fatalf("got %q", ports)
	}
	for _, port := range ports[:services+listeners] {
		if ours[port] {
			t.Errorf("both processes have %s", port)
		}
	}
}

func TestLocalPortsAreFree(t *testing.T) {
	const step = 20
	var next int
	var held net.Listener
	for held == nil { // an engine port of the next service, whose ports follow in the same hundred
		if next = testkit.LocalPort() + step; next%100 > step {
			held, _ = net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(next+200))
		}
	}
	defer held.Close()
	for range 3 {
		if got := testkit.LocalPort(); got == next {
			t.Fatalf("got %d, whose engine port %d is taken", got, next+200)
		}
	}
}

func TestFreeAddrsDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 20 {
		addr := testkit.FreeAddr()
		if seen[addr] {
			t.Fatalf("%s was given twice", addr)
		}
		seen[addr] = true
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
}
