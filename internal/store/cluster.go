package store

import (
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"skyserve/internal/atomicfile"
)

// Limits of a cluster, each with its reason.
const (
	// Replicas is the number of members that hold each stream of a cluster: one may be lost.
	Replicas = 3
	// clusterPrefix starts the name of every embedded cluster, by which clients recognise one.
	clusterPrefix = "skyserve-"
	// routePingInterval and maxRoutePings limit how long a member keeps a connection to a member that no longer
	// responds.
	routePingInterval = 2 * time.Second
	maxRoutePings     = 2
	// memberFile contains the identity of a member, in its directory.
	memberFile = "MEMBER"
)

// Cluster makes an embedded store a member of a cluster of three or more. Three members hold each stream. A write is
// acknowledged once two of them have synced it to disk; any one member may be lost with its disk. Every member has the
// same Name, Routes and Members.
//
// The disk of a member has an identity of its own: a machine that returns with an empty disk is a new member.
// Otherwise it would vote as if it still had the acknowledged writes of the lost disk. The cluster removes
// the old member itself.
type Cluster struct {
	// Name is the name of the cluster, from ClusterName. Members of a cluster of another name are
	// refused.
	Name string
	// Node is the name of this machine: 1 to 64 letters, digits, dashes and underscores, unique in the cluster.
	Node string
	// Listen is the host:port for routes of other members.
	Listen string
	// Advertise is the host:port at which other members reach Listen; empty = Listen.
	Advertise string
	// Routes are the addresses of the members, two or more: host:port or nats-route://host:port. This member's own
	// may be among them.
	Routes []string
	// Members are the Nodes of all members, three or more. A node that is not among them and does not respond is
	// removed. A cluster without data opens to clients once all of them respond, or once one of them has restored
	// its single store.
	Members []string
	// Accept and Dial authenticate the other members: the TLS configuration of Listen, and of
	// connections to Routes. Set both or neither. Without them, Listen must be a loopback address.
	Accept, Dial *tls.Config
}

// ClusterName returns the name of the cluster of a service.
func ClusterName(service string) string { return clusterPrefix + service }

var nodeRE = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// isNode reports whether name is a valid name of a node.
func isNode(name string) bool { return len(name) <= 64 && nodeRE.MatchString(name) }

// validate returns an error for the first invalid field.
func (c *Cluster) validate() error {
	if c == nil {
		return nil
	}
	if !strings.HasPrefix(c.Name, clusterPrefix) || !isNode(c.Name) {
		return fmt.Errorf("the cluster's name must be %s and the name of the service, got %q", clusterPrefix, c.Name)
	}
	for _, n := range append([]string{c.Node}, c.Members...) {
		if !isNode(n) {
			return fmt.Errorf("a node must be 1 to 64 letters, digits, dashes and underscores, got %q", n)
		}
	}
	if len(c.Members) < Replicas {
		return fmt.Errorf("a cluster must have %d members or more, got %d; start the store without a cluster", Replicas, len(c.Members))
	}
	if (c.Accept == nil) != (c.Dial == nil) {
		return errors.New("the cluster requires TLS configurations for both accepting and dialling members, got one of them")
	}
	host, _, err := checkListen(c.Listen, true)
	if err != nil {
		return fmt.Errorf("the address for routes: %w", err)
	}
	if c.Accept == nil && !isLoopback(host) {
		return fmt.Errorf("the address for routes: listen must be a loopback address, got %q; set Accept and Dial to listen on other addresses", c.Listen)
	}
	_, err = c.routes()
	return err
}

// routes parses Routes, and sorts them as NATS does. NATS sorts the slice in place when it reloads its options, while
// other goroutines of NATS read it without a lock: a sorted slice stays unchanged.
func (c *Cluster) routes() ([]*url.URL, error) {
	var urls []*url.URL
	for _, r := range c.Routes {
		if !strings.Contains(r, "://") {
			r = "nats-route://" + r
		}
		u, err := url.Parse(r)
		if err != nil || u.Port() == "" {
			return nil, fmt.Errorf("a route must be host:port, got %q", r)
		}
		urls = append(urls, u)
	}
	if len(urls) < 2 {
		return nil, fmt.Errorf("a cluster must have the routes of at least 2 members, got %d", len(urls))
	}
	slices.SortFunc(urls, func(a, b *url.URL) int { return strings.Compare(a.String(), b.String()) })
	return urls, nil
}

// apply sets the options of a member.
func (c *Cluster) apply(o *server.Options, m member) error {
	host, port, err := checkListen(c.Listen, true)
	if err != nil {
		return err
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	routes, err := c.routes()
	if err != nil {
		return fmt.Errorf("starting store: %w", err)
	}
	o.ServerName, o.Routes = m.serverName(), routes
	o.Cluster = server.ClusterOpts{
		Name: c.Name, Host: host, Port: port, Advertise: c.Advertise, NoAdvertise: true,
		TLSTimeout: tlsTimeout.Seconds(), PingInterval: routePingInterval, MaxPingsOut: maxRoutePings,
	}
	if c.Accept != nil {
		// NATS uses one configuration for both directions: this one to dial, and Accept for what it
		// accepts.
		t := c.Dial.Clone()
		t.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.Accept, nil }
		o.Cluster.TLSConfig = t
	}
	return nil
}

// member is the identity of a member's disk, stored in memberFile.
type member struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
	// ID is random: see Cluster.
	ID string `json:"id"`
	// Detached is set when this member alone holds all data: see Server.Detach.
	Detached bool `json:"detached,omitempty"`
	// DataMoved is set when another member has taken over all data: the data of this member is outdated. Files on
	// disk contain it under a former name.
	DataMoved bool `json:"left,omitempty"`
}

// serverName returns the name of the member's NATS server.
func (m member) serverName() string { return m.Node + "." + m.ID }

// nodeOf returns the node of the name of a member's NATS server.
func nodeOf(serverName string) string {
	node, _, _ := strings.Cut(serverName, ".")
	return node
}

// readMember returns the identity of a directory; the zero value if it never was a member.
func readMember(dir string) (m member, err error) {
	path := filepath.Join(dir, memberFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err == nil && (m.ID == "" || m.Node == "" || m.Cluster == "") {
		err = errors.New("it has no cluster, node or id")
	}
	if err != nil {
		return m, fmt.Errorf("starting store: reading %s: %w; restore it, or move the directory away to join the cluster with an empty disk", path, err)
	}
	return m, nil
}

// write stores the identity.
func (m member) write(dir string) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(filepath.Join(dir, memberFile), data, 0o600)
}

// IsMember reports whether a directory belongs to a member of a cluster, which has to be detached before it
// can be a single store: see Server.Detach. A detached member remains a member until it has run as a single store.
func IsMember(dir string) (bool, error) {
	m, err := readMember(dir)
	return m.ID != "" && !m.DataMoved, err
}

// openMember returns the identity of a directory for a member of a cluster, or the zero value for a single store (c is
// nil). It chooses a new identity for a directory that has none or whose data was moved; prepareMember stores it. It
// refuses the directory of another cluster or node. For a single store it also refuses the directory of a member that was
// not detached.
func openMember(dir string, c *Cluster) (member, error) {
	m, err := readMember(dir)
	if err != nil {
		return m, err
	}
	switch {
	case m.DataMoved:
		m = member{}
	case c == nil && m.ID != "" && !m.Detached:
		return m, fmt.Errorf("starting store: %s is the directory of member %s of cluster %s and may lack writes that the others hold; detach it first, or start it as a member", dir, m.Node, m.Cluster)
	case c == nil:
		return m, nil
	case m.ID != "" && (m.Cluster != c.Name || m.Node != c.Node):
		return m, fmt.Errorf("starting store: %s is the directory of member %s of cluster %s, not of %s of %s; use another directory", dir, m.Node, m.Cluster, c.Node, c.Name)
	case m.ID != "" && m.Detached: // it never ran as a single store
		m.Detached = false
		return m, m.write(dir)
	case m.ID != "":
		return m, nil
	}
	if c == nil {
		return m, nil
	}
	m = member{Cluster: c.Name, Node: c.Node, ID: strings.ToLower(rand.Text()[:8])}
	return m, nil
}

// authenticator admits clients by token, and the server itself to the system account.
type authenticator struct {
	token  string
	secret string // of the server itself, random
	system func() *server.Account
}

// systemUser and internalUser are the names by which the server connects to its own system account, and
// to the account with the streams.
const systemUser, internalUser = "system", "internal"

// Check implements server.Authentication.
func (a *authenticator) Check(c server.ClientAuthentication) bool {
	o := c.GetOpts()
	if o.Username == systemUser && subtle.ConstantTimeCompare([]byte(o.Password), []byte(a.secret)) == 1 {
		c.RegisterUser(&server.User{Username: systemUser, Account: a.system()})
		return true
	}
	own := o.Username == internalUser && subtle.ConstantTimeCompare([]byte(o.Password), []byte(a.secret)) == 1
	return own || a.token == "" || subtle.ConstantTimeCompare([]byte(o.Token), []byte(a.token)) == 1
}
