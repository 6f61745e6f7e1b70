package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"time"
)

// selfSignedFor is the validity of a certificate of SelfSigned, longer than any process runs.
const selfSignedFor = 10 * 365 * 24 * time.Hour

// SelfSigned returns the configuration of a listener with a newly generated certificate for
// localhost, which encrypts but proves nothing. protocol is the ALPN name.
func SelfSigned(protocol string) (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "select-service"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedFor),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		DNSNames:              []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	conf := listenerDefaults()
	conf.NextProtos = []string{protocol}
	conf.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	return conf, nil
}
