// A device on Go's crypto/tls: plays a whole conversation with a server, and fails where an answer is not as it must be.
//
// usage: device HOST:PORT ADMIN_HOST:ADMIN_PORT CA_FILE 1.2|1.3 [steps]
// The server's certificate is for "localhost"; devices may publish to topics "open/*".
// With "steps", it waits for lines: at each it hears so many numbers of the topic "news" as the line says, sends in
// small and large records, and writes the line back.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	welcome    = 1
	pong       = 2
	push       = 3
	subscribed = 5
	published  = 7
)

const patience = 60 * time.Second

func field(number uint64, value []byte) []byte {
	out := binary.AppendUvarint(nil, number<<3|2)
	out = binary.AppendUvarint(out, uint64(len(value)))
	return append(out, value...)
}

func frame(kind uint64, fields ...[]byte) []byte {
	message := field(kind, bytes.Join(fields, nil))
	return append(binary.AppendUvarint(nil, uint64(len(message))), message...)
}

func hello(device string) []byte    { return frame(1, field(1, []byte(device))) }
func ping(data string) []byte       { return frame(2, field(1, []byte(data))) }
func subscribe(topic string) []byte { return frame(3, field(1, []byte(topic))) }

func publish(topic string, data []byte, request uint64) []byte {
	number := binary.AppendUvarint([]byte{6 << 3}, request)
	return frame(5, field(1, []byte(topic)), field(3, data), number)
}

// The fields of a message by number; of those that come again, the last. Numbers are left out.
func fieldsOf(data []byte) map[uint64][]byte {
	fields := map[uint64][]byte{}
	for len(data) > 0 {
		key, used := binary.Uvarint(data)
		data = data[used:]
		switch key & 7 {
		case 0:
			_, used := binary.Uvarint(data)
			data = data[used:]
		case 1:
			data = data[8:]
		default:
			length, used := binary.Uvarint(data)
			data = data[used:]
			fields[key>>3] = data[:length]
			data = data[length:]
		}
	}
	return fields
}

type device struct {
	conn *tls.Conn
	from *bufio.Reader
}

func connect(address string, config *tls.Config) device {
	conn, err := tls.Dial("tcp", address, config)
	check(err)
	check(conn.SetDeadline(time.Now().Add(patience)))
	return device{conn, bufio.NewReader(conn)}
}

// Each write is a record, if it is no longer than a record may be.
func (d device) say(data []byte, recordBytes int) {
	for len(data) > 0 {
		count := recordBytes
		if count > len(data) {
			count = len(data)
		}
		_, err := d.conn.Write(data[:count])
		check(err)
		data = data[count:]
	}
}

func (d device) hearAny() (uint64, map[uint64][]byte) {
	length, err := binary.ReadUvarint(d.from)
	check(err)
	body := make([]byte, length)
	_, err = io.ReadFull(d.from, body)
	check(err)
	for kind, message := range fieldsOf(body) {
		return kind, fieldsOf(message)
	}
	log.Fatalf("a message without a kind: %x", body)
	return 0, nil
}

func (d device) hear(kind uint64) map[uint64][]byte {
	heard, message := d.hearAny()
	if heard != kind {
		log.Fatalf("wanted kind %d, heard %d: %v", kind, heard, message)
	}
	return message
}

func fromBackend(admin, text string) {
	body := fmt.Sprintf(`{"topic": "news", "text": %q}`, text)
	client := http.Client{Timeout: patience}
	answer, err := client.Post("http://"+admin+"/v1/publish", "application/json", strings.NewReader(body))
	check(err)
	if answer.StatusCode != http.StatusOK {
		log.Fatalf("publishing: %s", answer.Status)
	}
}

func expect(got, wanted []byte, what string) {
	if !bytes.Equal(got, wanted) {
		log.Fatalf("%s: %d bytes %.40q, wanted %d bytes %.40q", what, len(got), got, len(wanted), wanted)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func converse(d device, admin, name string) {
	d.say(hello(name), 16384)
	d.hear(welcome)
	d.say(subscribe("news"), 16384)
	expect(d.hear(subscribed)[1], []byte("news"), "topic")
	fromBackend(admin, "one")
	expect(d.hear(push)[2], []byte("one"), "text")
	large := strings.Repeat("0123456789abcdef", 3840)
	fromBackend(admin, large)
	expect(d.hear(push)[2], []byte(large), "large text")

	d.say(subscribe("open/a"), 16384)
	d.hear(subscribed)
	data := make([]byte, 60*1024)
	for index := range data {
		data[index] = byte(index % 251)
	}
	d.say(publish("open/a", data, 1), 97)
	// Which of the two comes first does not matter.
	first, answer := d.hearAny()
	second, other := d.hearAny()
	if first == published {
		first, answer, second = second, other, first
	}
	if first != push || second != published {
		log.Fatalf("heard kinds %d and %d", first, second)
	}
	expect(answer[3], data, "data")

	manyPings(d)
}

func manyPings(d device) {
	var many []byte
	for number := 0; number < 1000; number++ {
		many = append(many, ping(fmt.Sprint(number))...)
	}
	d.say(many, 16384)
	for number := 0; number < 1000; number++ {
		expect(d.hear(pong)[1], []byte(fmt.Sprint(number)), "pong")
	}
}

// Lives on one connection, whatever becomes of the server meanwhile.
func stepByStep(d device) {
	fmt.Println("ready")
	next := 0
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		count, err := strconv.Atoi(lines.Text())
		check(err)
		for range count {
			expect(d.hear(push)[2], []byte(strconv.Itoa(next)), "number")
			next++
		}
		manyPings(d)
		d.say(publish("open/b", make([]byte, 40_000), 1), 997)
		d.hear(published)
		fmt.Println(lines.Text())
	}
	check(lines.Err())
}

func main() {
	log.SetFlags(log.Lshortfile)
	address, admin, authority, version := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	pem, err := os.ReadFile(authority)
	check(err)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		log.Fatal("no certificate in ", authority)
	}
	number := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}[version]
	config := &tls.Config{
		RootCAs:    roots,
		ServerName: "localhost",
		MinVersion: number,
		MaxVersion: number,
		NextProtos: []string{"weir.v1"},
		// So that a record is as long as the write that makes it.
		DynamicRecordSizingDisabled: true,
		ClientSessionCache:          tls.NewLRUClientSessionCache(0),
	}
	for _, wanted := range []bool{false, true} {
		d := connect(address, config)
		state := d.conn.ConnectionState()
		if state.Version != number || state.NegotiatedProtocol != "weir.v1" || state.DidResume != wanted {
			log.Fatalf("wanted resumption %v, state: %+v", wanted, state)
		}
		converse(d, admin, fmt.Sprintf("go-%s-%v", version, wanted))
		if len(os.Args) > 5 {
			stepByStep(d)
			return
		}
		check(d.conn.Close())
	}
	fmt.Println("done")
}
