// Posts a large body with the client of Java's own library, and prints what became of each: the status and the version of
// HTTP, or what was thrown.
//
// Arguments: the certificate to be trusted, how many bytes, and pairs of a version of HTTP (1.1 or 2; with a + behind it the
// client waits for 100 Continue) and a URL.

import java.io.FileInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.Arrays;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

public class Upload {
    public static void main(String[] args) throws Exception {
        byte[] body = new byte[Integer.parseInt(args[1])];
        Arrays.fill(body, (byte) ' ');
        for (int i = 2; i < args.length; i += 2) {
            boolean isH2 = args[i].startsWith("2");
            HttpClient client = HttpClient.newBuilder()
                .version(isH2 ? HttpClient.Version.HTTP_2 : HttpClient.Version.HTTP_1_1)
                .sslContext(trusting(args[0]))
                .build();
            HttpRequest request = HttpRequest.newBuilder(URI.create(args[i + 1]))
                .header("Content-Type", "application/json")
                .timeout(Duration.ofSeconds(60))
                .expectContinue(args[i].endsWith("+"))
                .POST(HttpRequest.BodyPublishers.ofByteArray(body))
                .build();
            try {
                HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
                System.out.println(answer.statusCode() + " " + answer.version());
            } catch (java.io.IOException error) {
                System.out.println(error);
            }
        }
        // The clients keep threads.
        System.exit(0);
    }

    static SSLContext trusting(String path) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null);
        try (FileInputStream file = new FileInputStream(path)) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return context;
    }
}
