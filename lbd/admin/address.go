package admin

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// resolveTimeout bounds the DNS lookup of a replica's host name.
const resolveTimeout = 3 * time.Second

// metadataPrefixes are the addresses at which clouds serve a VM its credentials, besides the
// link-local ones. A replica with such an address would make the balancer fetch them.
var metadataPrefixes = []netip.Prefix{
	netip.MustParsePrefix("fd00:ec2::/32"),      // AWS, IPv6
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google, IPv6
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
	netip.MustParsePrefix("192.0.0.192/32"),     // Oracle
}

// translationPrefixes are the IPv6 prefixes that gateways map to the IPv4 address in their last four bytes
// (RFC 6052, RFC 8215, and the compatible ones of RFC 4291).
var translationPrefixes = []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("::/96")}

// effectiveAddress returns the address that packets to addr reach.
func effectiveAddress(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if addr.Is6() && !addr.IsLoopback() && !addr.IsUnspecified() && containsAddress(translationPrefixes, addr) {
		b := addr.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return addr
}

// RejectMetadataAddresses returns a check that rejects addresses no replica can have: link-local, multicast
// and instance metadata addresses, except those in allow. It must be repeated when connecting to a replica,
// because its name may resolve to another address than when it was added.
func RejectMetadataAddresses(allow []netip.Prefix) func(netip.Addr) error {
	return func(given netip.Addr) error {
		addr := effectiveAddress(given)
		if containsAddress(allow, addr) || containsAddress(allow, given) {
			return nil
		}
		if addr.IsLinkLocalUnicast() || addr.IsMulticast() || containsAddress(metadataPrefixes, addr) {
			return fmt.Errorf("%s is not allowed as a replica address", addr)
		}
		return nil
	}
}

// checkAddress rejects hosts that no replica can have: link-local, multicast and instance metadata
// addresses and, with nearOnly, everything outside this machine and private networks. AllowCIDRs
// overrides it.
func (a *API) checkAddress(ctx context.Context, host string, nearOnly bool) error {
	addrs, err := a.addresses(ctx, host)
	if err != nil {
		return err
	}
	reject := RejectMetadataAddresses(a.opts.AllowCIDRs)
	for _, given := range addrs {
		if err := reject(given); err != nil {
			return fmt.Errorf("url: host %s: %w", quoteClipped(host), err)
		}
		addr := effectiveAddress(given)
		switch {
		case containsAddress(a.opts.AllowCIDRs, addr) || containsAddress(a.opts.AllowCIDRs, given):
		case addr.IsUnspecified():
			return fmt.Errorf("url: host %s: %s is not allowed as a replica address", quoteClipped(host), addr)
		case nearOnly && !addr.IsLoopback() && !addr.IsPrivate():
			step := "add its network to --allow-replicas"
			if a.opts.ServiceYAML != nil { // the balancers of a service have no such flag
				step = "add the replica to regions[].endpoints of a static region in service.yaml, and run 'skyserve up'"
			}
			return fmt.Errorf("url: host %s: %s is outside this machine and its private networks: %s", quoteClipped(host), addr, step)
		}
	}
	return nil
}

func (a *API) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addrs, err := a.opts.Resolve(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("url: look up host %s: %w", quoteClipped(host), err)
	}
	return addrs, nil
}

func containsAddress(prefixes []netip.Prefix, addr netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}
