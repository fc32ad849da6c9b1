package cloud

import (
	"skyserve/internal/service"
	"skyserve/provision"
)

// addBinary adds the skyserve binary in the service's bucket of a cloud, and returns the grant to download
// it; none if machines of the cloud download the binary from another URL. global is the region of the cloud's global
// objects.
func (l *layout) addBinary(cloud string, global service.Region) []provision.Grant {
	p, ok := l.Binaries[cloud]
	if !ok {
		return nil
	}
	w := provision.Desired{
		ID: provision.BinaryID(cloud, p.SHA256), Kind: provision.KindBinary, Region: global, Binary: &p,
		Service: l.Spec.Name, Owner: l.Owner, SpecHash: provision.BinarySpecHash(p.SHA256),
	}
	l.result.Desired = append(l.result.Desired, w)
	return []provision.Grant{provision.GrantBinary(p.Bucket)}
}
