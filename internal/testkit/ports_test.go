package testkit_test

import (
	"net"
	"strconv"
	"testing"

	"skyserve/internal/testkit"
)

func TestLocalPortsDoNotCollide(t *testing.T) {
	const services, machines = 50, 20
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

func TestLocalPortsAreFree(t *testing.T) {
	var held net.Listener
	for held == nil {
		held, _ = net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(testkit.LocalPort()+200))
	}
	defer held.Close()
	taken := held.Addr().(*net.TCPAddr).Port - 200
	for range 200 { // more than there are
		if got := testkit.LocalPort(); got == taken {
			t.Fatalf("got %d, whose engine port %d is taken", got, taken+200)
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
