package local

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/goccy/go-yaml"

	"skyserve/internal/service"
	"skyserve/provision"
)

const (
	nameServerID     = "nameserver"
	nameServerListen = "dns.listen"
	fileName         = "name.json"
)

// readyPath is where a balancer says whether it takes requests.
const readyPath = "/readyz"

// Records are the balancers as a public name leads to them: where others reach
// them, and else where they listen, which is this machine alone.
func (l *Layout) Records() []service.NameRecord {
	var records []service.NameRecord
	for _, r := range l.spec.Regions {
		for n := range r.Balancers {
			id := provision.BalancerID(r.Name, n)
			own := l.scheme() + "://" + l.addr(l.slots.Balancers[id])
			record := service.NameRecord{ID: id, Region: r.Name, Public: own, Check: own + readyPath}
			if len(r.Public) > n {
				record.Public = r.Public[n]
			}
			records = append(records, record)
		}
	}
	return records
}

// Owner tells this machine's service from another of the same name, where both
// could be: it is kept with the service's state.
func (t Tokens) Owner() string {
	sum := sha256.Sum256([]byte("owner " + t.Peer))
	return hex.EncodeToString(sum[:12])
}

// addNameServer wants the process that answers the service's name, where the
// service.yaml asks for one. It is a process of its own so that names are answered
// whatever becomes of the controller and the balancers.
func (l *Layout) addNameServer() error {
	d := l.spec.DNS
	if d == nil || d.Provider != service.DNSEmbedded {
		return nil
	}
	c := service.NameServerConfig{
		Service: l.spec.Name, Listen: d.Listen, Name: d.Name, Zone: d.Zone, Routing: d.Routing, TTL: d.TTL,
		Records: l.Records(), Clients: d.Clients, RTT: l.spec.LocalHosts.RTT,
	}
	w := provision.Want{ID: nameServerID, Kind: provision.KindNameServer, Address: "dns://" + d.Listen}
	return l.wantConfigured(w, c, c, nameServerID, []port{{Addr: d.Listen, Purpose: "names", Setting: nameServerListen}})
}

// ReadNameServer reads the configuration file of a name server.
func ReadNameServer(path string) (service.NameServerConfig, error) {
	var c service.NameServerConfig
	data, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalWithOptions(data, &c, yaml.Strict())
	}
	if err != nil {
		return c, fmt.Errorf("reading the name server's configuration %s: %w", path, err)
	}
	return c, nil
}

// KeepName notes that a name in a hosted zone is about to lead to the service, so
// that it can be removed whatever becomes of service.yaml. Its records are not
// kept: they are in the zone.
func (s Service) KeepName(n provision.Name) error {
	n.Records = nil
	data, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("keeping the name %s: %w", n.Name, err)
	}
	return writeFile(s.configFile(fileName), data)
}

// KeptName is the name that was last kept; false when there is none.
func (s Service) KeptName() (n provision.Name, has bool, err error) {
	data, err := os.ReadFile(s.configFile(fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return provision.Name{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &n)
	}
	if err != nil {
		return provision.Name{}, false, fmt.Errorf("reading the published name of %s in %s: %w", s.name, s.configFile(fileName), err)
	}
	return n, true, nil
}

// ForgetName notes that the kept name leads nowhere any more.
func (s Service) ForgetName() error {
	if err := os.Remove(s.configFile(fileName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forgetting the published name of %s: %w", s.name, err)
	}
	return nil
}
