package rollout

import (
	"context"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/dns"
)

// DNSStatus is the public name of a service.
type DNSStatus struct {
	// Name is empty where the service.yaml asks for none any more, and its name server
	// still runs.
	Name     string `json:"name"`
	Zone     string `json:"zone"`
	Provider string `json:"provider"`
	// Server is the process that answers the name; null where a hosted zone does.
	Server *Process `json:"server"`
	// Records are what the name server leads to, as it finds them; empty where a
	// hosted zone checks its records itself.
	Records []DNSRecord `json:"records"`
}

// DNSRecord is a balancer as the name server finds it.
type DNSRecord struct {
	ID      string         `json:"id"`
	Region  service.Region `json:"region"`
	Address string         `json:"address"` // with its port
	// Healthy says whether it is given out while others are, too.
	Healthy bool   `json:"healthy"`
	Reason  string `json:"reason"` // what its last check had against it
}

// well says whether a name is answered; a service without one has nothing amiss.
func (d *DNSStatus) well() bool { return d == nil || d.Server == nil || d.Server.State == StateReady }

// askNameServer asks the service's own name server.
func (b *statusBuilder) askNameServer(ctx context.Context) {
	if b.dns == nil {
		return // it is about to go
	}
	names, err := dns.Ask(ctx, b.dns.Listen, b.dns.Name)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.names = names; err != nil {
		b.nameError = err.Error()
	}
}

// nameStatus is what there is to say of the name; nil where the service has none.
func (b *statusBuilder) nameStatus() *DNSStatus {
	d := &DNSStatus{Records: []DNSRecord{}}
	if b.dns != nil {
		d.Name, d.Zone, d.Provider = b.dns.Name, b.dns.Zone, b.dns.Provider
	}
	for _, w := range b.wants {
		if w.Kind == provision.KindNameServer {
			p := b.process(w)
			if p.State == StateReady && b.nameError != "" {
				p.State, p.Reason = StateStarting, b.nameError
			}
			d.Server = &p
		}
	}
	for _, r := range b.names {
		d.Records = append(d.Records, DNSRecord(r))
	}
	if b.dns == nil && d.Server == nil {
		return nil
	}
	return d
}
