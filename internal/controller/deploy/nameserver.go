package deploy

import (
	"context"
	"slices"
	"time"

	"github.com/goccy/go-yaml"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/dns"
)

// UnitNameServer is the name of a name server's unit.
const UnitNameServer = "nameserver"

// fileNameServerConfig is the file of a name server's configuration.
const fileNameServerConfig = UnitNameServer + "/config.yaml"

// dnsQueryTimeout is the timeout of querying a name server on this computer.
const dnsQueryTimeout = time.Second

// nameServerDeployment returns the deployment of the name server's machine.
func (d *deploymentBuilder) nameServerDeployment() (agent.Deployment, error) {
	n := d.spec.DNS
	c := service.NameServerConfig{
		Service: d.spec.Name, Listen: n.Listen, Name: n.Name, Zone: n.Zone, Routing: n.Routing, TTL: n.TTL,
		Records: NameRecords(d.spec, d.have), Clients: n.Clients, RTT: d.spec.LocalHosts.RTT,
	}
	text, err := yaml.Marshal(c)
	if err != nil {
		return agent.Deployment{}, err
	}
	return agent.Deployment{Units: []agent.Unit{{
		Name: UnitNameServer, Args: []string{program, "nameserver", "--config", fileNameServerConfig}, Files: map[string]string{fileNameServerConfig: string(text)},
	}}}, nil
}

// NameRecords returns the DNS records of the balancers on this computer: their public URL where
// there is one, otherwise their listen address, which only this computer reaches.
func NameRecords(spec *service.Spec, have []provision.Object) []service.NameRecord {
	var records []service.NameRecord
	for _, r := range spec.Regions {
		for n := range r.Balancers {
			id := provision.BalancerID(r.Name, n)
			i := slices.IndexFunc(have, func(o provision.Object) bool {
				return o.ID == id && o.TerminatedReason == "" && cloud.RunsOnThisComputer(o.Region)
			})
			if i < 0 {
				continue
			}
			own := PublicURL(spec, have[i])
			record := service.NameRecord{ID: id, Region: r.Name, Public: own, Check: own + readyPath}
			if len(r.PublicURLs) > n {
				record.Public = r.PublicURLs[n]
			}
			records = append(records, record)
		}
	}
	return records
}

// nameStatus returns the status of a service's name; nil where it has none.
func (i *Inspector) nameStatus(ctx context.Context, machines []provision.Object, responses []machineReport) *DNSStatus {
	n := slices.IndexFunc(machines, func(o provision.Object) bool { return o.Kind == provision.KindNameServer })
	spec := i.Deployer.Spec.DNS
	if spec == nil && n < 0 {
		return nil
	}
	d := &DNSStatus{Records: []DNSRecord{}}
	if spec != nil {
		d.Name, d.Zone, d.Provider = spec.Name, spec.Zone, spec.Provider
	}
	if n < 0 {
		if spec.Provider == service.DNSEmbedded {
			d.Server = &MachineStatus{ID: provision.NameServerID, State: service.StateUnreachable, Reason: "not started; run 'skyserve up'", Desired: true}
		}
		return d
	}
	m := machineStatus(i.Deployer.Spec, machines[n], responses[n])
	m.URL, m.Endpoint, m.Desired = "", machines[n].Address, spec != nil && spec.Provider == service.DNSEmbedded
	if m.State == service.StateFailed {
		m.State = service.StateUnreachable
	}
	if m.State == service.StateReady && m.Desired {
		ctx, cancel := context.WithTimeout(ctx, dnsQueryTimeout)
		defer cancel()
		records, err := dns.QueryRecords(ctx, spec.Listen, spec.Name)
		if err != nil {
			m.State, m.Reason = service.StateStarting, err.Error()
		}
		for _, r := range records {
			d.Records = append(d.Records, DNSRecord(r))
		}
	}
	d.Server = &m
	return d
}

// nameServerProblem returns why a name server has no healthy record, or nothing.
func nameServerProblem(ctx context.Context, spec *service.DNS) string {
	ctx, cancel := context.WithTimeout(ctx, dnsQueryTimeout)
	defer cancel()
	records, err := dns.QueryRecords(ctx, spec.Listen, spec.Name)
	if err != nil {
		return err.Error()
	}
	if !slices.ContainsFunc(records, func(r dns.RecordState) bool { return r.Healthy }) {
		return "no balancer is ready"
	}
	return ""
}
