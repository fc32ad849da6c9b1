package testkit

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Local services number their ports from local.port: a hundred of each kind. Tests use the first
// few of each kind, so services whose first ports are portStep apart do not collide.
const (
	portFirst  = 10001 // ephemeral ports begin above 32,767
	portStep   = 20
	portKinds  = 10 // kinds of ports of a service, a hundred ports each
	portBlocks = 17 // of portKinds hundreds each
	portBases  = portBlocks * 100 / portStep
)

// portBlocksOf are the numbered blocks of one kind of ports. A process locks the blocks that it uses, so that no other
// process gets their ports between two listeners of one test.
type portBlocksOf struct {
	name  string // of the lock files
	count int
	free  func(n int) bool // reports whether the ports of block n are free; nil = not checked

	sync.Mutex
	started bool
	last    int        // number of the last block that was tried
	mine    []int      // numbers of the blocks that this process has locked, the one used last at the end
	locks   []*os.File // never closed: a lock ends with the process
	// released are the blocks among mine whose test has ended.
	released map[int]bool
}

// next returns a block that this process has not used yet, else one that was released, or else the one that it has not used
// for longest, which a test that is still running may use. It panics if none is free. A process locks at most half of the
// blocks: the others are for other processes.
func (b *portBlocksOf) next() int {
	if !b.started {
		b.started, b.last = true, os.Getpid() // test binaries start far apart
	}
	for range b.count {
		if len(b.mine) == b.count/2 {
			break
		}
		b.last = (b.last + 1) % b.count
		if slices.Contains(b.mine, b.last) {
			continue
		}
		lock, err := b.lock(b.last)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue
		}
		if err != nil {
			panic(fmt.Sprintf("testkit: locking ports: %v", err))
		}
		if !b.isFree(b.last) { // checked with the lock: the check binds the ports, which another process may just open
			lock.Close()
			continue
		}
		b.mine, b.locks = append(b.mine, b.last), append(b.locks, lock)
		return b.last
	}
	for _, all := range []bool{false, true} {
		for i, n := range b.mine {
			if (all || b.released[n]) && b.isFree(n) {
				b.mine = append(slices.Delete(b.mine, i, i+1), n)
				delete(b.released, n)
				return n
			}
		}
	}
	panic("testkit: all ports for " + b.name + " are in use; stop the processes of earlier tests")
}

// release records that the test that used a block has ended.
func (b *portBlocksOf) release(n int) {
	if b.released == nil {
		b.released = map[int]bool{}
	}
	b.released[n] = true
}

func (b *portBlocksOf) isFree(n int) bool { return b.free == nil || b.free(n) }

// lock locks a block until the process ends. It fails with EWOULDBLOCK if another process has locked it.
func (b *portBlocksOf) lock(n int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf("skyserve-test-%s-%d", b.name, n)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

var servicePorts = portBlocksOf{name: "ports", count: portBases, free: func(n int) bool { return portsFree(portBase(n)) }}

// LocalPort returns a local.port for the service of a test. No other test uses it, unless this process calls it more
// than portBases/2 times without ReleaseLocalPort, and the first ports of each kind are free. It allows up to 20 machines of
// a kind.
func LocalPort() int {
	servicePorts.Lock()
	defer servicePorts.Unlock()
	return portBase(servicePorts.next())
}

// ReleaseLocalPort returns a port of LocalPort whose test has ended, for further tests of this process.
func ReleaseLocalPort(port int) {
	servicePorts.Lock()
	defer servicePorts.Unlock()
	for _, n := range servicePorts.mine {
		if portBase(n) == port {
			servicePorts.release(n)
		}
	}
}

// WideLocalPort is a local.port for tests of the distance between services: no other test uses a port that is up to 900
// below or 1,900 above it. Only one test at a time may use it, so only those of one package do.
const WideLocalPort = portFirst + portBlocks*portKinds*100 + 950

// portBase returns the first port of a block.
func portBase(n int) int {
	return portFirst + n/(100/portStep)*portKinds*100 + n%(100/portStep)*portStep
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
	addrFirst    = 30101
	addrPerBlock = 26
	addrBlocks   = 100
)

var (
	addrPorts = portBlocksOf{name: "addresses", count: addrBlocks}
	addrsLeft []int // the ports of the last block that were not returned yet; addrPorts guards them
)

// FreeAddr returns a free address on loopback, for a listener that must have the same address when it
// starts again. No other test gets it, unless this process calls it more than addrPerBlock*addrBlocks/2 times.
func FreeAddr() string {
	addrPorts.Lock()
	defer addrPorts.Unlock()
	for range addrPerBlock * addrBlocks {
		if len(addrsLeft) == 0 {
			first := addrFirst + addrPerBlock*addrPorts.next()
			for n := range addrPerBlock {
				addrsLeft = append(addrsLeft, first+n)
			}
		}
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(addrsLeft[0]))
		addrsLeft = addrsLeft[1:]
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	panic("testkit: all ports for listeners are in use; stop the processes of earlier tests")
}
