import io.netty.handler.ssl.ApplicationProtocolConfig;
import io.netty.handler.ssl.ApplicationProtocolConfig.Protocol;
import io.netty.handler.ssl.ApplicationProtocolConfig.SelectedListenerFailureBehavior;
import io.netty.handler.ssl.ApplicationProtocolConfig.SelectorFailureBehavior;
import io.netty.handler.ssl.OpenSslContextOption;
import io.netty.handler.ssl.OpenSslServerSessionContext;
import io.netty.handler.ssl.OpenSslSessionTicketKey;
import io.netty.handler.ssl.SslContext;
import io.netty.handler.ssl.SslContextBuilder;
import io.netty.handler.ssl.SslProvider;
import java.io.File;
import java.security.SecureRandom;
import javax.net.ssl.SSLException;

/** TLS 1.2 and 1.3 by BoringSSL; sessions resume by ticket, and those of TLS 1.2 by id too. */
final class Tls {
    private Tls() {}

    static SslContext context(String chain, String key, String... protocols) throws SSLException {
        SslContext context = SslContextBuilder.forServer(new File(chain), new File(key))
                .sslProvider(SslProvider.OPENSSL_REFCNT)
                .protocols("TLSv1.3", "TLSv1.2")
                // A handshake continues on its loop: another thread would cost a switch.
                .option(OpenSslContextOption.USE_TASKS, false)
                .applicationProtocolConfig(new ApplicationProtocolConfig(
                        Protocol.ALPN,
                        SelectorFailureBehavior.NO_ADVERTISE,
                        SelectedListenerFailureBehavior.ACCEPT,
                        protocols))
                .sessionCacheSize(64 << 10)
                .build();
        byte[] name = new byte[OpenSslSessionTicketKey.NAME_SIZE];
        byte[] hmac = new byte[OpenSslSessionTicketKey.HMAC_KEY_SIZE];
        byte[] aes = new byte[OpenSslSessionTicketKey.AES_KEY_SIZE];
        SecureRandom random = new SecureRandom();
        random.nextBytes(name);
        random.nextBytes(hmac);
        random.nextBytes(aes);
        OpenSslServerSessionContext sessions = (OpenSslServerSessionContext) context.sessionContext();
        sessions.setSessionCacheEnabled(true);
        sessions.setTicketKeys(new OpenSslSessionTicketKey(name, hmac, aes));
        return context;
    }
}
