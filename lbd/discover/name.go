package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/lbd/wire"
)

const (
	// lookupTimeout bounds one lookup: the system's resolver tries each of up to three name servers twice, for
	// 5 s each, and the last one may be the first that responds.
	lookupTimeout = 30 * time.Second
	// maxMissing is the number of consecutive answers after which a replica is removed whose address is in none of them:
	// some servers return a different part of the addresses with each answer.
	maxMissing = 3
	// maxAddresses bounds the addresses in one answer.
	maxAddresses = 256
)

// Resolver resolves names; *net.Resolver implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// Prefixes of URLs that are resolved to several replicas.
const (
	prefixAddresses = "dns+" // the A and AAAA records of the host
	prefixServices  = "srv+" // its SRV records, which contain the ports
)

// IsName reports whether a replica's URL is a DNS name that is resolved to several replicas: dns+http://HOST:PORT
// or srv+http://NAME.
func IsName(raw string) bool {
	return strings.HasPrefix(raw, prefixAddresses) || strings.HasPrefix(raw, prefixServices)
}

// CheckURL validates the URL of a replica, which may be a DNS name. check validates other URLs.
func CheckURL(raw string, check func(url string) error) error {
	if !IsName(raw) {
		return check(raw)
	}
	_, err := parseName(raw)
	return err
}

// name is a parsed DNS name.
type name struct {
	services bool // SRV records
	scheme   string
	host     string
	port     string // empty with services
	path     string
}

// parseName parses the URL of a DNS name.
func parseName(raw string) (name, error) {
	n := name{services: strings.HasPrefix(raw, prefixServices)}
	u, err := url.Parse(raw[len(prefixAddresses):])
	if err != nil {
		return n, errors.New("url: must be a URL such as dns+http://replicas.example.com:8000")
	}
	n.scheme, n.host, n.port, n.path = u.Scheme, u.Hostname(), u.Port(), strings.TrimRight(u.Path, "/")
	_, notAddress := netip.ParseAddr(n.host)
	switch {
	case u.User != nil:
		return n, errors.New("url: must not contain a user or password")
	case u.RawQuery != "" || u.Fragment != "":
		u.RawQuery, u.Fragment = "", "" // a query may contain a key
		return n, fmt.Errorf("url: must be a base URL without query, such as %s", quote(raw[:len(prefixAddresses)]+u.String()))
	case n.host == "" || notAddress == nil:
		return n, fmt.Errorf("url: must contain a DNS name, got %s", quote(raw))
	case n.services && (n.scheme == "http" || n.scheme == "https") && n.port == "":
		return n, nil
	case n.services:
		return n, fmt.Errorf("url: must be srv+http://NAME or srv+https://NAME, without a port, got %s", quote(raw))
	case n.scheme == "https":
		return n, fmt.Errorf("url: dns+https is not supported, because certificates are for names, not for addresses: use srv+https://NAME, got %s", quote(raw))
	case n.scheme != "http" || n.port == "":
		return n, fmt.Errorf("url: must be dns+http://HOST:PORT, got %s", quote(raw))
	}
	if port, err := strconv.ParseUint(n.port, 10, 16); err != nil || port == 0 {
		return n, fmt.Errorf("url: must have a port from 1 to 65535, got %s", quote(raw))
	}
	return n, nil
}

// nameSource resolves a DNS name.
type nameSource struct {
	template service.ReplicaConfig
	name     name
	listedBy string // start of the origin; empty = the configuration
	resolver Resolver
	missing  map[string]int // hosts and ports of the last list, with the number of consecutive answers that lack them
	last     []string       // the hosts and ports of the last list, sorted
	failing  bool           // the last lookup failed
}

func newNameSource(template service.ReplicaConfig, resolver Resolver) (*nameSource, error) {
	n, err := parseName(template.URL)
	return &nameSource{template: template, name: n, resolver: resolver, missing: map[string]int{}}, err
}

func (s *nameSource) origin() string { return s.listedBy + nameOrigin + s.template.URL }

func (s *nameSource) settings() service.ReplicaConfig { return s.template }

// nameOrigin is the start of the origin of the replicas of a DNS name in the configuration.
const nameOrigin = "dns "

// NameOf returns the URL of the DNS name in the configuration that an origin stands for.
func NameOf(origin string) (url string, ok bool) { return strings.CutPrefix(origin, nameOrigin) }

// list resolves the name. changed is false if the answer has the same replicas as the last one.
func (s *nameSource) list(ctx context.Context) (replicas []service.ReplicaConfig, changed bool, err error) {
	found, err := s.lookUp(ctx)
	if err != nil {
		s.failing = true
		return nil, true, err
	}
	hosts := s.keepMissing(found)
	if !s.failing && s.last != nil && slices.Equal(hosts, s.last) {
		return nil, false, nil
	}
	s.failing, s.last = false, hosts
	for _, host := range hosts {
		r := s.template
		r.URL, r.ID = s.name.scheme+"://"+host+s.name.path, host
		if s.template.ID != "" {
			r.ID = s.template.ID + "-" + host
		}
		replicas = append(replicas, r)
	}
	return replicas, true, nil
}

// lookUp returns the hosts and ports of the current answer, sorted.
func (s *nameSource) lookUp(ctx context.Context) (hosts []string, err error) {
	if s.name.services {
		hosts, err = s.lookUpServices(ctx)
	} else {
		hosts, err = s.lookUpAddresses(ctx, s.name.host, s.name.port)
	}
	slices.Sort(hosts)
	hosts = slices.Compact(hosts)
	switch {
	case err != nil:
		return nil, err
	case len(hosts) == 0:
		return nil, errors.New("the answer contains no address")
	case len(hosts) > maxAddresses:
		return nil, fmt.Errorf("must have at most %d addresses, got %d", maxAddresses, len(hosts))
	}
	return hosts, nil
}

func (s *nameSource) lookUpAddresses(ctx context.Context, host, port string) (hosts []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addresses, err := s.resolver.LookupNetIP(ctx, "ip", host)
	for _, a := range addresses {
		hosts = append(hosts, net.JoinHostPort(a.Unmap().String(), port))
	}
	return hosts, err
}

// lookUpServices resolves SRV records. With https the hosts are names, for which certificates are issued.
func (s *nameSource) lookUpServices(ctx context.Context) (hosts []string, err error) {
	limited, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	_, records, err := s.resolver.LookupSRV(limited, "", "", s.name.host)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		host, port := strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port))
		switch {
		case host == "": // RFC 2782: the service is not available
		case s.name.scheme == "https":
			hosts = append(hosts, net.JoinHostPort(host, port))
		default:
			found, err := s.lookUpAddresses(ctx, host, port)
			if err != nil {
				return nil, err
			}
			hosts = append(hosts, found...)
		}
	}
	return hosts, nil
}

// keepMissing adds the hosts of the last list that were missing for less than maxMissing answers.
func (s *nameSource) keepMissing(found []string) []string {
	hosts := slices.Clone(found)
	for _, host := range s.last {
		if slices.Contains(found, host) {
			delete(s.missing, host)
			continue
		}
		if s.missing[host]++; s.missing[host] < maxMissing {
			hosts = append(hosts, host)
			continue
		}
		delete(s.missing, host)
	}
	slices.Sort(hosts)
	return hosts
}

func (s *nameSource) problem(err error, have int) (message, nextStep string) {
	var de *net.DNSError
	cause, effect := err.Error(), "no address was found yet"
	if errors.As(err, &de) {
		cause = cmp.Or(de.Err, cause)
		if de.Name != s.name.host { // the target of an SRV record
			cause = de.Name + ": " + cause
		}
	}
	if have > 0 {
		effect = "the last answer with " + printable.Count(have, "address") + " stays in effect"
	}
	return fmt.Sprintf("resolving %s failed: %s; %s", s.template.URL, wire.WithoutLocalAddress(cause), effect),
		fmt.Sprintf("check the DNS records of %s and the name servers of this machine", s.name.host)
}
