package testkit

import (
	"net"
	"os"
	"strconv"
	"sync/atomic"
)

// Local services count their ports from local.port: a hundred of each kind, of which tests use
// the first few. So services whose first ports are portStep apart do not meet.
const (
	portFirst  = 10001 // ports that systems give out by themselves begin above 32,767
	portStep   = 20
	portKinds  = 10 // hundreds that a service counts through
	portBlocks = 20 // of portKinds hundreds each
	portBases  = portBlocks * 100 / portStep
)

// portTurn is what was given out last; tests that run beside these begin elsewhere.
var portTurn atomic.Int64

func init() { portTurn.Store(int64(os.Getpid())) }

// LocalPort is a local.port for a service of one test: no other test of this program is given
// it, and nobody listens on the first ports of its kinds. At most 20 machines of a kind fit.
func LocalPort() int {
	for range portBases {
		n := int(portTurn.Add(1) % portBases)
		base := portFirst + n/(100/portStep)*portKinds*100 + n%(100/portStep)*portStep
		if portsFree(base) {
			return base
		}
	}
	panic("testkit: every port for local services is taken; stop what earlier tests left running")
}

// portsFree tells whether nobody listens on the first ports of each kind.
func portsFree(base int) bool {
	for kind := range portKinds {
		for n := range 2 {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(base+100*kind+n)))
			if err != nil {
				return false
			}
			l.Close()
		}
	}
	return true
}
