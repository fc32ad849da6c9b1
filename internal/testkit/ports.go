package testkit

import (
	"net"
	"os"
	"strconv"
	"sync/atomic"
)

// Local services number their ports from local.port: a hundred of each kind. Tests use the first
// few of each kind, so services whose first ports are portStep apart do not collide.
const (
	portFirst  = 10001 // ephemeral ports begin above 32,767
	portStep   = 20
	portKinds  = 10 // kinds of ports of a service, a hundred ports each
	portBlocks = 20 // of portKinds hundreds each
	portBases  = portBlocks * 100 / portStep
)

// lastPortBase is the last block assigned. It starts at the process id, since other test
// binaries run in parallel.
var lastPortBase atomic.Int64

func init() { lastPortBase.Store(int64(os.Getpid())) }

// LocalPort returns a local.port for the service of a test. No other test of this process uses it,
// and the first ports of each kind are free. It allows up to 20 machines of a kind.
func LocalPort() int {
	for range portBases {
		n := int(lastPortBase.Add(1) % portBases)
		base := portFirst + n/(100/portStep)*portKinds*100 + n%(100/portStep)*portStep
		if portsFree(base) {
			return base
		}
	}
	panic("testkit: all ports for local services are in use; stop the processes of earlier tests")
}

// portsFree reports whether the ports of each kind that tests use most are free: the first two, and the last
// one, which is that of name servers.
func portsFree(base int) bool {
	for kind := range portKinds {
		for _, n := range []int{0, 1, portStep - 1} {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(base+100*kind+n)))
			if err != nil {
				return false
			}
			l.Close()
		}
	}
	return true
}

// Ports for single listeners lie between those of local services and the ephemeral ones, so that no
// outgoing connection takes one before it is used.
const (
	addrFirst = 30101
	addrCount = 2600
)

var lastAddr atomic.Int64

func init() { lastAddr.Store(int64(os.Getpid()) * 37) } // test binaries start far apart

// FreeAddr returns a free address on loopback, for a listener that must have the same address when it
// starts again. No other test of this process gets it.
func FreeAddr() string {
	for range addrCount {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(addrFirst+int(lastAddr.Add(1)%addrCount)))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	panic("testkit: all ports for listeners are in use; stop the processes of earlier tests")
}
